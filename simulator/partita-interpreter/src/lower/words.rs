//! The modifiers of an instruction. Each must be taken: an unknown one is refused.

use super::body::Lower;
use crate::math::Rounding;
use partita_ptx::PtxError;
use partita_ptx::Type;
use partita_ptx::module::Instruction;

pub(super) struct Words<'a> {
    of: &'a Instruction,
    left: Vec<&'a str>,
}

impl<'a> Words<'a> {
    pub(super) fn new(of: &'a Instruction) -> Self {
        Self { of, left: of.modifiers.iter().map(String::as_str).collect() }
    }

    /// Takes a modifier if it is there.
    pub(super) fn take(&mut self, word: &str) -> bool {
        let at = self.left.iter().position(|left| *left == word);
        at.map(|at| self.left.remove(at)).is_some()
    }

    /// Takes all modifiers that satisfy a condition: those without a meaning here.
    pub(super) fn drop(&mut self, is_dropped: impl Fn(&str) -> bool) {
        self.left.retain(|left| !is_dropped(left));
    }

    /// Takes the first modifier with a meaning.
    pub(super) fn find<T>(&mut self, meaning: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (at, found) = self.left.iter().enumerate().find_map(|(at, word)| Some((at, meaning(word)?)))?;
        self.left.remove(at);
        Some(found)
    }

    /// Takes the first modifier with a meaning, which must be there.
    pub(super) fn need<T>(&mut self, what: &str, meaning: impl Fn(&str) -> Option<T>) -> Result<T, PtxError> {
        self.find(meaning).ok_or_else(|| self.of.refused(format!("it names no {what}")))
    }

    pub(super) fn rounding(&mut self) -> Option<Rounding> {
        self.find(Rounding::of)
    }

    pub(super) fn ty(&mut self) -> Result<Type, PtxError> {
        self.need("type", Type::of)
    }

    /// Whether anything is left; an error names it.
    pub(super) fn end(self) -> Result<(), PtxError> {
        match self.left.first() {
            None => Ok(()),
            Some(word) => Err(self.of.refused(format!("its modifier '.{word}' is not simulated"))),
        }
    }
}
