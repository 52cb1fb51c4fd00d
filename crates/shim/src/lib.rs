//! The preload library that puts an unmodified VMM's memory under management
