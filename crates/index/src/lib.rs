//! The SD tree: a lock-free index of page contents
