//! Variables of the environment with which `bindery run` tells the library what to say of its guest.

/// The daemon's socket, if it is not the user's default one.
pub const SOCKET_VARIABLE: &str = "BINDERY_SOCKET";

/// The guest's name.
pub const NAME_VARIABLE: &str = "BINDERY_NAME";

/// The domain that the guest shares pages in.
pub const DOMAIN_VARIABLE: &str = "BINDERY_DOMAIN";
