//! Typed client of the Multi-Process Service.
