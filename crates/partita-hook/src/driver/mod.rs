//! The driver's own library: its functions, and the calls that the hook makes of them.

pub mod calls;
pub mod capture;
pub mod page;
pub mod places;
pub mod quiet;
pub mod real;
pub mod row;
pub mod stream;
pub mod word;
