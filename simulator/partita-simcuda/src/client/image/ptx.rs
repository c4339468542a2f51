//! PTX text: its kernels and variables. The board runs the kernels.

use std::collections::BTreeMap;
use std::sync::Arc;

use partita_abi::CuResult;
use partita_interpreter::Kernel;
use partita_ptx::Module;
use partita_ptx::module::{Function, Linkage, Space, Statement, Variable};

use super::{Global, Initial, Loaded};
use crate::client::function::KernelInfo;
use crate::client::source::Source;

/// Reads a module.
///
/// # Errors
/// `INVALID_PTX` for text that is no PTX; a line on standard error says where and why.
pub fn parse(text: &str) -> Result<Loaded, CuResult> {
    let module = Module::parse(text).map_err(|error| {
        eprintln!("partita-sim: this PTX is refused: {error}");
        CuResult::INVALID_PTX
    })?;
    let source = Arc::new(Source { text: text.to_owned(), module });
    let mut loaded = Loaded { ptx_target: Some(source.module.architecture()), ..Loaded::default() };
    let is_here = |variable: &&Variable| {
        variable.linkage != Some(Linkage::Extern)
            && matches!(variable.space, Space::Global | Space::Const)
            && variable.bytes().is_some_and(|bytes| bytes > 0)
    };
    for variable in source.module.variables().filter(is_here) {
        loaded.globals.push(Global {
            name: variable.name.clone(),
            bytes: variable.bytes().unwrap_or(0),
            initial: Initial::Ptx(Arc::clone(&source), Box::new(variable.clone())),
        });
    }
    // Where the variables are does not matter to what the kernels need.
    let symbols: BTreeMap<String, u64> =
        loaded.globals.iter().map(|global| (global.name.clone(), 0)).collect();
    for entry in source.module.functions().filter(|function| function.is_entry && function.body.is_some()) {
        loaded.kernels.push(kernel(&source, entry, &symbols)?);
    }
    Ok(loaded)
}

fn kernel(
    source: &Arc<Source>,
    entry: &Function,
    symbols: &BTreeMap<String, u64>,
) -> Result<KernelInfo, CuResult> {
    let module = &source.module;
    let target = module.architecture();
    let layout = entry.layout().ok_or(CuResult::INVALID_PTX)?;
    let threads = entry.numbers("reqntid").or_else(|| entry.numbers("maxntid"));
    let threads = threads.map_or(0, |sizes| sizes.iter().fold(1u64, |all, size| all.saturating_mul(*size)));
    let made = Kernel::new(module, &entry.name, symbols);
    Ok(KernelInfo {
        name: entry.name.clone(),
        params: layout.into_iter().map(|(at, bytes)| (at as usize, bytes as usize)).collect(),
        shared_bytes: made.as_ref().map_or_else(|_| declared_shared(entry), |kernel| kernel.shared_bytes()),
        threads_max: u32::try_from(threads).unwrap_or(u32::MAX),
        ptx_version: target.max(module.version.0 * 10 + module.version.1),
        binary_version: target,
        refused: made.err().map(|error| error.to_string()),
        source: Some(Arc::clone(source)),
        ..KernelInfo::default()
    })
}

/// Shared memory that an entry declares itself.
fn declared_shared(entry: &Function) -> u32 {
    fn sum(statements: &[Statement]) -> u64 {
        let bytes = |statement: &Statement| match statement {
            Statement::Variable(variable) if variable.space == Space::Shared => variable.bytes().unwrap_or(0),
            Statement::Block(statements) => sum(statements),
            _ => 0,
        };
        statements.iter().map(bytes).fold(0, u64::saturating_add)
    }
    u32::try_from(sum(entry.body.as_deref().unwrap_or_default())).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_kernels_are_read_with_their_parameters() {
        let text = partita_abi::kernels::PTX_MODULE.to_str().unwrap();
        let loaded = parse(text).unwrap();
        assert_eq!(loaded.kernels.len(), partita_abi::kernels::KERNELS.len());
        for (name, sizes) in partita_abi::kernels::KERNELS {
            let kernel = loaded.kernels.iter().find(|k| k.name.as_bytes() == name.to_bytes()).unwrap();
            let found: Vec<usize> = kernel.params.iter().map(|(_, size)| *size).collect();
            assert_eq!(found, *sizes);
            assert_eq!(kernel.refused, None);
        }
        assert!(loaded.globals.is_empty());
    }

    #[test]
    fn structures_bounds_and_variables_are_understood() {
        let text = "
            .version 9.0 .target sm_90 .address_size 64
            .visible .global .align 4 .u32 counter;
            .global .align 16 .b8 table[256] = {1, 2};
            .const .f32 weights[4];
            .extern .global .u32 elsewhere;
            .visible .entry one(
                .param .u32 one_0, // four bytes
                .param .align 8 .b8 one_1[24],
                .param .u64 .ptr .global .align 16 one_2
            ) .maxntid 128, 2, 1 .minnctapersm 2
            { .reg .u32 %r1; .shared .align 4 .b8 tile[1024]; ld.shared.u32 %r1, [tile]; ret; }
            .entry two() { ret; }
            .entry three() { .shared .b8 big[64]; mma.sync.aligned.m8n8k4 {a}, {b}, {c}, {d}; }";
        let loaded = parse(text).unwrap();
        let one = &loaded.kernels[0];
        assert_eq!(one.params, [(0, 4), (8, 24), (32, 8)]);
        assert_eq!((one.threads_max, one.shared_bytes, one.binary_version), (256, 1024, 90));
        let three = &loaded.kernels[2];
        assert_eq!((three.name.as_str(), three.shared_bytes), ("three", 64));
        assert!(three.refused.as_ref().is_some_and(|why| why.contains("tensor cores are not simulated")));
        let globals: Vec<_> = loaded.globals.iter().map(|g| (g.name.as_str(), g.bytes)).collect();
        assert_eq!(globals, [("counter", 4), ("table", 256), ("weights", 16)]);
    }

    #[test]
    fn text_that_is_no_ptx_is_refused() {
        assert_eq!(parse("hello"), Err(CuResult::INVALID_PTX));
        assert_eq!(parse(".version 9.0 .target sm_90 .entry broken( {"), Err(CuResult::INVALID_PTX));
    }
}
