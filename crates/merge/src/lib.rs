//! PageONE: periods, workers, planner, canonical store
