//! What a guest is to the daemon: a connection and its lanes
