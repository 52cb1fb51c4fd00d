//! The daemon: guests, domains, control socket
