//! Single scenes, each with the one thing that it shows.
