//! `kaas-net`.
