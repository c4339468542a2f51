//! The instructions: which function lowers each, and why others are refused.

use super::body::{Body, Done, Lower};
use super::{arithmetic, call, compare, control, convert, memory, warp};
use crate::module::Instruction;

type Lowered = for<'l, 'm> fn(&mut Body<'l, 'm>, &Instruction) -> Done;

/// Every known instruction.
const KNOWN: &[(&str, Lowered)] = &[
    ("abs", arithmetic::one),
    ("activemask", warp::active_mask),
    ("add", arithmetic::two),
    ("addc", arithmetic::carried),
    ("and", arithmetic::two),
    ("applypriority", control::nothing),
    ("atom", memory::atomic),
    ("bar", warp::barrier),
    ("barrier", warp::barrier),
    ("bfe", arithmetic::three),
    ("bfi", arithmetic::insert),
    ("bfind", arithmetic::one),
    ("bra", control::branch),
    ("brev", arithmetic::one),
    ("brx", control::branch_indexed),
    ("call", call::call),
    ("clz", arithmetic::one),
    ("cnot", arithmetic::one),
    ("copysign", arithmetic::two),
    ("cos", arithmetic::one),
    ("cp", memory::copy),
    ("cvt", convert::convert),
    ("cvta", memory::generic),
    ("discard", control::nothing),
    ("div", arithmetic::two),
    ("dp4a", arithmetic::dot),
    ("elect", warp::elect),
    ("ex2", arithmetic::one),
    ("exit", control::end),
    ("fence", control::fence),
    ("fma", arithmetic::three),
    ("griddepcontrol", control::nothing),
    ("isspacep", memory::is_space),
    ("ld", memory::load),
    ("ldu", memory::load),
    ("lg2", arithmetic::one),
    ("lop3", arithmetic::logic),
    ("mad", arithmetic::three),
    ("mad24", arithmetic::three),
    ("madc", arithmetic::carried_product),
    ("match", warp::matching),
    ("max", arithmetic::two),
    ("membar", control::fence),
    ("min", arithmetic::two),
    ("mov", convert::copy),
    ("mul", arithmetic::two),
    ("mul24", arithmetic::two),
    ("nanosleep", control::sleep),
    ("neg", arithmetic::one),
    ("not", arithmetic::one),
    ("or", arithmetic::two),
    ("pmevent", control::nothing),
    ("popc", arithmetic::one),
    ("prefetch", control::nothing),
    ("prefetchu", control::nothing),
    ("prmt", arithmetic::permute),
    ("rcp", arithmetic::one),
    ("red", memory::atomic),
    ("redux", warp::reduce),
    ("rem", arithmetic::two),
    ("ret", control::end),
    ("rsqrt", arithmetic::one),
    ("sad", arithmetic::three),
    ("selp", compare::select),
    ("set", compare::set),
    ("setp", compare::set_predicate),
    ("shf", arithmetic::funnel),
    ("shfl", warp::shuffle),
    ("shl", arithmetic::two),
    ("shr", arithmetic::two),
    ("sin", arithmetic::one),
    ("slct", compare::select_by_sign),
    ("sqrt", arithmetic::one),
    ("st", memory::store),
    ("sub", arithmetic::two),
    ("subc", arithmetic::carried),
    ("tanh", arithmetic::one),
    ("testp", arithmetic::one),
    ("trap", control::end),
    ("vote", warp::vote),
    ("xor", arithmetic::two),
];

/// Instructions that are refused by the beginning of their name, with the reason.
const REFUSED: &[(&str, &str)] = &[
    ("wmma", "tensor cores are not simulated"),
    ("mma", "tensor cores are not simulated"),
    ("wgmma", "tensor cores are not simulated"),
    ("tcgen05", "tensor cores are not simulated"),
    ("ldmatrix", "tensor cores are not simulated"),
    ("stmatrix", "tensor cores are not simulated"),
    ("movmatrix", "tensor cores are not simulated"),
    ("setmaxnreg", "register budgets of warp groups are not simulated"),
    ("tex", "textures are not simulated"),
    ("tld4", "textures are not simulated"),
    ("txq", "textures are not simulated"),
    ("sust", "surfaces are not simulated"),
    ("suld", "surfaces are not simulated"),
    ("sured", "surfaces are not simulated"),
    ("suq", "surfaces are not simulated"),
    ("istypep", "textures and surfaces are not simulated"),
    ("mapa", "clusters are not simulated"),
    ("getctarank", "clusters are not simulated"),
    ("clusterlaunchcontrol", "clusters are not simulated"),
    ("mbarrier", "asynchronous barriers are not simulated"),
    ("multimem", "memory of several devices is not simulated"),
    ("tensormap", "the tensor memory accelerator is not simulated"),
    ("createpolicy", "cache policies are not simulated"),
    ("alloca", "stack allocations of variable length are not simulated"),
    ("stacksave", "stack allocations of variable length are not simulated"),
    ("stackrestore", "stack allocations of variable length are not simulated"),
    ("brkpt", "breakpoints are not simulated"),
];

/// Lowers an instruction.
pub(super) fn lower(body: &mut Body<'_, '_>, instruction: &Instruction) -> Done {
    let opcode = instruction.opcode.as_str();
    if let Some((_, lowered)) = KNOWN.iter().find(|(known, _)| *known == opcode) {
        return lowered(body, instruction);
    }
    let refused = REFUSED.iter().find(|(known, _)| *known == opcode);
    let reason = refused.map_or("the interpreter does not know this instruction", |(_, reason)| reason);
    Err(instruction.refused(reason))
}
