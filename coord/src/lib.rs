//! `kaas-coord`.
