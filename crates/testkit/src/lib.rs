//! Fault points, oracles and guests for tests
