//! Stream capture.
#![allow(missing_docs)]

use partita_abi::CuResult;
use partita_abi::types::CUhostFn;

use super::event::Event;
use super::function::Function;
use super::launch::Launch;
use super::memset::Fill;
use super::runtime::Runtime;
use super::stream::Stream;
use crate::shared::command::{Command, Rect};

pub fn abandon(_: &'static Stream) {}
pub fn forget_event(_: &'static Event) {}
pub fn refuse_sync(_: &'static Stream) -> Result<(), CuResult> {
    Ok(())
}
pub fn invalidate(_: &'static Stream) {}
pub fn record_event(_: &'static Stream, _: &'static Event, _: bool) -> Result<(), CuResult> {
    Err(CuResult::NOT_SUPPORTED)
}
pub fn wait_event(_: &'static Stream, _: &'static Event, _: bool) -> Result<(), CuResult> {
    Err(CuResult::NOT_SUPPORTED)
}
pub fn add_copy(_: &'static Stream, _: Rect) -> Result<(), CuResult> {
    Err(CuResult::NOT_SUPPORTED)
}
pub fn add_fill(_: &'static Stream, _: Fill) -> Result<(), CuResult> {
    Err(CuResult::NOT_SUPPORTED)
}
pub fn add_command(_: &'static Stream, _: Command) -> Result<(), CuResult> {
    Err(CuResult::NOT_SUPPORTED)
}
pub fn add_host(_: &'static Stream, _: CUhostFn, _: usize) -> Result<(), CuResult> {
    Err(CuResult::NOT_SUPPORTED)
}
pub fn add_kernel(
    _: &Runtime,
    _: &'static Stream,
    _: &'static Function,
    _: &Launch,
    _: &[u8],
) -> Result<(), CuResult> {
    Err(CuResult::NOT_SUPPORTED)
}
