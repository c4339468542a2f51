//! The parser: from text to [`Module`].

mod body;
mod declaration;
mod operand;

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::error::{Position, PtxError};
use crate::module::{Directive, Function, Item, Linkage, Module, Statement};
use crate::token::{Kind, Token, tokens};

/// Braces, brackets and parentheses inside one another, at most: the parser calls itself for each.
const DEPTH_MAX: u32 = 64;

/// Directives that no semicolon ends, outside and inside functions.
const ENDLESS: [&str; 2] = ["file", "loc"];

impl Module {
    /// Parses a module.
    ///
    /// # Errors
    /// Text that is not PTX, with the place and the reason. Instructions are not checked: a module
    /// with an unknown instruction parses.
    pub fn parse(text: &str) -> Result<Self, PtxError> {
        let tokens = tokens(text)?;
        Parser { text, tokens, at: 0, depth: 0 }.module()
    }
}

/// The text with the place that the parser has reached.
pub(crate) struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    at: usize,
    depth: u32,
}

impl Parser<'_> {
    // ---- tokens ----

    fn token(&self) -> &Token {
        // The last token is the end, and nothing moves past it.
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn kind(&self) -> &Kind {
        &self.token().kind
    }

    fn kind_after(&self, ahead: usize) -> &Kind {
        &self.tokens[(self.at + ahead).min(self.tokens.len() - 1)].kind
    }

    fn place(&self) -> Position {
        self.token().at
    }

    fn step(&mut self) {
        self.at += 1;
    }

    fn source(&self, token: &Token) -> String {
        self.text.get(token.start..token.end).unwrap_or_default().to_owned()
    }

    fn error<T>(&self, reason: impl Into<String>) -> Result<T, PtxError> {
        Err(PtxError::new(self.place(), self.token().subject(), reason))
    }

    fn is_mark(&self, mark: char) -> bool {
        *self.kind() == Kind::Mark(mark)
    }

    /// Takes a mark if it comes next.
    fn take_mark(&mut self, mark: char) -> bool {
        let found = self.is_mark(mark);
        if found {
            self.step();
        }
        found
    }

    fn expect_mark(&mut self, mark: char) -> Result<(), PtxError> {
        if self.take_mark(mark) { Ok(()) } else { self.error(format!("'{mark}' is expected here")) }
    }

    /// The word of a directive or modifier that comes next.
    fn dot(&self) -> Option<&str> {
        match self.kind() {
            Kind::Dot(name) => Some(name),
            _ => None,
        }
    }

    /// Takes a directive or modifier if it comes next.
    fn take_dot(&mut self, name: &str) -> bool {
        let found = self.dot() == Some(name);
        if found {
            self.step();
        }
        found
    }

    fn name(&mut self) -> Result<String, PtxError> {
        let Kind::Name(name) = self.kind() else { return self.error("a name is expected here") };
        let name = name.clone();
        self.step();
        Ok(name)
    }

    fn integer(&mut self) -> Result<u64, PtxError> {
        let Kind::Integer(value) = *self.kind() else { return self.error("an integer is expected here") };
        self.step();
        Ok(value)
    }

    fn small(&mut self) -> Result<u32, PtxError> {
        let before = self.at;
        let value = self.integer()?;
        u32::try_from(value).or_else(|_| {
            self.at = before;
            self.error("the number has more than 32 bits")
        })
    }

    /// Runs a part of the parser one level deeper.
    fn deeper<T>(&mut self, part: impl FnOnce(&mut Self) -> Result<T, PtxError>) -> Result<T, PtxError> {
        if self.depth >= DEPTH_MAX {
            return self.error(format!("more than {DEPTH_MAX} levels of brackets"));
        }
        self.depth += 1;
        let result = part(self);
        self.depth -= 1;
        result
    }

    /// Items up to a closing mark, with commas between them. The opening mark is already taken.
    fn items<T>(
        &mut self,
        close: char,
        mut item: impl FnMut(&mut Self) -> Result<T, PtxError>,
    ) -> Result<Vec<T>, PtxError> {
        let mut items = Vec::new();
        if self.take_mark(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if !self.take_mark(',') {
                self.expect_mark(close)?;
                return Ok(items);
            }
        }
    }

    // ---- the module ----

    fn module(mut self) -> Result<Module, PtxError> {
        let version = self.version()?;
        if !self.take_dot("target") {
            return self.error(".target is expected here");
        }
        let mut target = vec![self.name()?];
        while self.take_mark(',') {
            target.push(self.name()?);
        }
        let address_size = if self.take_dot("address_size") { self.small()? } else { 32 };
        if !matches!(address_size, 32 | 64) {
            self.at -= 1;
            return self.error("addresses have 32 or 64 bits");
        }
        let mut items = Vec::new();
        while *self.kind() != Kind::End {
            self.item(&mut items)?;
        }
        Ok(Module { version, target, address_size, items })
    }

    fn version(&mut self) -> Result<(u32, u32), PtxError> {
        if !self.take_dot("version") {
            return self.error("a module begins with .version");
        }
        let text = self.source(self.token());
        let numbers = text.split_once('.').map(|(major, minor)| (major.parse(), minor.parse()));
        let Some((Ok(major), Ok(minor))) = numbers else {
            return self.error("a version is a number like 8.0");
        };
        self.step();
        Ok((major, minor))
    }

    fn item(&mut self, items: &mut Vec<Item>) -> Result<(), PtxError> {
        let linkage = self.linkage();
        let Some(word) = self.dot() else { return self.error("a directive is expected here") };
        match word {
            "entry" | "func" => items.push(Item::Function(self.function(linkage)?)),
            "section" => {
                self.step();
                items.push(self.section()?);
            }
            "file" | "pragma" | "alias" | "loc" => items.push(Item::Directive(self.directive()?)),
            _ => {
                let variables = self.variables(linkage)?;
                items.extend(variables.into_iter().map(Item::Variable));
            }
        }
        Ok(())
    }

    fn linkage(&mut self) -> Option<Linkage> {
        let (found, _) = *Linkage::ALL.iter().find(|(_, word)| self.dot() == Some(word))?;
        self.step();
        Some(found)
    }

    fn section(&mut self) -> Result<Item, PtxError> {
        let Some(name) = self.dot().map(|name| format!(".{name}")) else {
            return self.error("the name of a section is expected here");
        };
        self.step();
        let start = self.token().end;
        self.expect_mark('{')?;
        while !self.is_mark('}') {
            if *self.kind() == Kind::End {
                return self.error("the section has no end");
            }
            self.step();
        }
        let text = self.text.get(start..self.token().start).unwrap_or_default().to_owned();
        self.step();
        Ok(Item::Section { name, text })
    }

    /// A directive that is kept as it is written.
    fn directive(&mut self) -> Result<Directive, PtxError> {
        let at = self.place();
        let Some(name) = self.dot().map(str::to_owned) else {
            return self.error("a directive is expected here");
        };
        self.step();
        let mut words = Vec::new();
        if !ENDLESS.contains(&name.as_str()) {
            while !self.take_mark(';') {
                if matches!(self.kind(), Kind::End | Kind::Mark('{' | '}')) {
                    return self.error(format!("'.{name}' ends with ';'"));
                }
                words.push(self.source(self.token()));
                self.step();
            }
            return Ok(Directive { at, name, words, has_end: true });
        }
        // `.loc 1 2 3, function_name LABEL, inlined_at 1 2 3` ends where no more of it can follow.
        loop {
            let follows = match self.kind() {
                Kind::Integer(_) | Kind::Text(_) | Kind::Mark(',' | '+') => true,
                Kind::Name(_) => {
                    matches!(words.last().map(String::as_str), Some("," | "function_name" | "inlined_at"))
                }
                _ => false,
            };
            if !follows {
                return Ok(Directive { at, name, words, has_end: false });
            }
            words.push(self.source(self.token()));
            self.step();
        }
    }

    // ---- functions ----

    fn function(&mut self, linkage: Option<Linkage>) -> Result<Function, PtxError> {
        let is_entry = self.dot() == Some("entry");
        self.step();
        let returns = if self.is_mark('(') { self.parameters()? } else { Vec::new() };
        let at = self.place();
        let name = self.name()?;
        let params = if self.is_mark('(') { self.parameters()? } else { Vec::new() };
        let mut directives = Vec::new();
        while let Some(name) = self.dot().map(str::to_owned) {
            let at = self.place();
            self.step();
            let mut words = Vec::new();
            while !matches!(self.kind(), Kind::Dot(_) | Kind::End | Kind::Mark('{' | ';')) {
                words.push(self.source(self.token()));
                self.step();
            }
            // The semicolon of `.pragma` is its own: a function's body follows it.
            let is_followed = matches!(self.kind_after(1), Kind::Mark('{') | Kind::Dot(_));
            let has_end = name == "pragma" && self.is_mark(';') && is_followed;
            if has_end {
                self.step();
            }
            directives.push(Directive { at, name, words, has_end });
        }
        let body = if self.take_mark('{') {
            Some(self.statements()?)
        } else {
            // A declaration ends with a semicolon, which old compilers leave out.
            self.take_mark(';');
            None
        };
        Ok(Function { at, linkage, is_entry, name, returns, params, directives, body })
    }

    /// Statements up to the closing brace.
    fn statements(&mut self) -> Result<Vec<Statement>, PtxError> {
        self.deeper(|parser| {
            let mut statements = Vec::new();
            while !parser.take_mark('}') {
                if *parser.kind() == Kind::End {
                    return parser.error("the function's body has no end");
                }
                parser.statement(&mut statements)?;
            }
            Ok(statements)
        })
    }
}
