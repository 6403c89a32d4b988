//! `kaas-core`.
