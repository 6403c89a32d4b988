//! Several brokers on one shared volume, of which one is the controller.
//!
//! Who that is, and which topics there are to be, comes from outside through [`ports`].

pub mod ports;
