//! The parser, the printer and the interpreter.

mod behaviour;
mod gpu;
mod instructions;
mod samples;
mod text;
