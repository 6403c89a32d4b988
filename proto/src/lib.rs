//! `kaas-proto`.
