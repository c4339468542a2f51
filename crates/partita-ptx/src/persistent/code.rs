//! The loop around a body, as PTX.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::turn::{SMS_MAX, TURN_BYTES, WHOLE_ROWS_TURN_BYTES};
use crate::error::{Position, PtxError};
use crate::module::{Function, Module, Space, Statement, Variable};
use crate::types::Type;

/// Begins every name that the rewriter adds.
pub(super) const PREFIX: &str = "__partita_turn";
/// Where a body ends.
pub(super) const TAIL: &str = "__partita_turn_tail";

/// Special registers of the grid, and the registers that the loop has in their places.
pub(super) const VIRTUAL: [(&str, &str); 6] = [
    ("%ctaid.x", "%__partita_turn_x"),
    ("%ctaid.y", "%__partita_turn_y"),
    ("%ctaid.z", "%__partita_turn_z"),
    ("%nctaid.x", "%__partita_turn_nx"),
    ("%nctaid.y", "%__partita_turn_ny"),
    ("%nctaid.z", "%__partita_turn_nz"),
];

/// `nanosleep` is of PTX 6.3 and sm_70.
const SLEEP_SINCE: ((u32, u32), u32) = ((6, 3), 70);

/// The loop's head. `T_` stands for the prefix of its names, `%T_` for that of its registers.
/// Thread 0 takes a number, and all read it in shared memory: a status (0: leave), and the block's
/// place.
///
/// The control memory has: 0 the next number, 8 how many blocks work, 12 how many have left, 16 the
/// epoch of the last set in which a block works inside.
const HEAD: &str = "
    .shared .align 16 .b8 T_now[16];
    .reg .pred %T_p, %T_other, %T_inside;
    .reg .b32 %T_x, %T_y, %T_z, %T_nx, %T_ny, %T_nz, %T_blocks;
    .reg .b32 %T_a, %T_b, %T_epoch, %T_announced, %T_works, %T_status;
    .reg .b64 %T_control, %T_set, %T_done, %T_total, %T_n, %T_d, %T_e;
    ld.param.u64 %T_control, [T_];
    ld.param.u64 %T_set, [T_+8];
    ld.param.u32 %T_nx, [T_+16];
    ld.param.u32 %T_ny, [T_+20];
    ld.param.u32 %T_nz, [T_+24];
    ld.param.u32 %T_blocks, [T_+28];
    ld.param.u64 %T_done, [T_+32];
    mul.wide.u32 %T_total, %T_nx, %T_ny;
    cvt.u64.u32 %T_d, %T_nz;
    mul.lo.u64 %T_total, %T_total, %T_d;
    mov.u32 %T_a, %tid.x;
    mov.u32 %T_b, %tid.y;
    or.b32 %T_a, %T_a, %T_b;
    mov.u32 %T_b, %tid.z;
    or.b32 %T_a, %T_a, %T_b;
    setp.ne.u32 %T_other, %T_a, 0;
    mov.u32 %T_works, 0;
    mov.u32 %T_announced, 0;
    T_next:
    WAIT_ASYNC
    barrier.sync 0;
    @%T_other bra T_meet;
    T_look:
    ld.volatile.global.u32 %T_epoch, [%T_set];
    mov.u32 %T_a, %smid;
    setp.ge.u32 %T_p, %T_a, SMS;
    @%T_p bra T_outside;
    shr.u32 %T_b, %T_a, 5;
    mul.wide.u32 %T_d, %T_b, 4;
    add.u64 %T_d, %T_d, %T_set;
    ld.volatile.global.u32 %T_b, [%T_d+8];
    and.b32 %T_a, %T_a, 31;
    shr.u32 %T_b, %T_b, %T_a;
    and.b32 %T_b, %T_b, 1;
    setp.ne.u32 %T_inside, %T_b, 0;
    @%T_inside bra T_here;
    T_outside:
    setp.ne.u32 %T_p, %T_works, 0;
    @%T_p bra T_moved;
    ld.volatile.global.u64 %T_n, [%T_control];
    setp.ge.u64 %T_p, %T_n, %T_total;
    @%T_p bra T_leave;
    ld.volatile.global.u32 %T_a, [%T_control+8];
    setp.ne.u32 %T_p, %T_a, 0;
    @%T_p bra T_leave;
    SLEEP
    bra T_look;
    T_moved:
    ld.volatile.global.u32 %T_a, [%T_control+16];
    setp.ne.u32 %T_p, %T_a, %T_epoch;
    @%T_p bra T_take;
    atom.global.add.u32 %T_a, [%T_control+8], -1;
    setp.gt.u32 %T_p, %T_a, 1;
    @%T_p bra T_left;
    red.global.add.u32 [%T_control+8], 1;
    bra T_take;
    T_left:
    mov.u32 %T_works, 0;
    bra T_leave;
    T_here:
    setp.ne.u32 %T_p, %T_works, 0;
    @%T_p bra T_announce;
    red.global.add.u32 [%T_control+8], 1;
    mov.u32 %T_works, 1;
    T_announce:
    setp.eq.u32 %T_p, %T_announced, %T_epoch;
    @%T_p bra T_take;
    mov.u32 %T_announced, %T_epoch;
    st.volatile.global.u32 [%T_control+16], %T_epoch;
    T_take:
    atom.global.add.u64 %T_n, [%T_control], 1;
    setp.ge.u64 %T_p, %T_n, %T_total;
    @%T_p bra T_leave;
    mov.u32 %T_status, 1;
    cvt.u32.u64 %T_x, %T_n;
    mov.u32 %T_y, 0;
    mov.u32 %T_z, 0;
    cvt.u64.u32 %T_d, %T_nx;
    setp.eq.u64 %T_p, %T_d, %T_total;
    @%T_p bra T_tell;
    rem.u64 %T_e, %T_n, %T_d;
    cvt.u32.u64 %T_x, %T_e;
    div.u64 %T_n, %T_n, %T_d;
    cvt.u64.u32 %T_d, %T_ny;
    rem.u64 %T_e, %T_n, %T_d;
    cvt.u32.u64 %T_y, %T_e;
    div.u64 %T_n, %T_n, %T_d;
    cvt.u32.u64 %T_z, %T_n;
    bra T_tell;
    T_leave:
    mov.u32 %T_status, 0;
    mov.u32 %T_x, 0;
    mov.u32 %T_y, 0;
    mov.u32 %T_z, 0;
    setp.eq.u32 %T_p, %T_works, 0;
    @%T_p bra T_count;
    red.global.add.u32 [%T_control+8], -1;
    T_count:
    membar.gl;
    atom.global.add.u32 %T_a, [%T_control+12], 1;
    add.u32 %T_a, %T_a, 1;
    setp.ne.u32 %T_p, %T_a, %T_blocks;
    @%T_p bra T_tell;
    membar.gl;
    mov.u64 %T_n, 0;
    mov.u32 %T_a, 0;
    st.volatile.global.u64 [%T_control], %T_n;
    st.volatile.global.u32 [%T_control+8], %T_a;
    st.volatile.global.u32 [%T_control+12], %T_a;
    st.volatile.global.u32 [%T_control+16], %T_a;
    setp.eq.u64 %T_p, %T_done, 0;
    @%T_p bra T_tell;
    membar.sys;
    mov.u32 %T_a, 1;
    st.volatile.global.u32 [%T_done], %T_a;
    T_tell:
    st.shared.v4.u32 [T_now], {%T_status, %T_x, %T_y, %T_z};
    T_meet:
    barrier.sync 0;
    bar.warp.sync -1;
    ld.shared.v4.u32 {%T_status, %T_x, %T_y, %T_z}, [T_now];
    setp.eq.u32 %T_p, %T_status, 0;
    @%T_p bra T_end;
";

const END: &str = "
    T_tail:
    bra T_next;
    T_end:
    ret;
";

/// The additional parameter.
pub(super) fn parameter(has_whole_rows: bool) -> Variable {
    Variable {
        at: Position::default(),
        linkage: None,
        space: Space::Param,
        attributes: Vec::new(),
        pointer: Vec::new(),
        align: Some(8),
        vector: 1,
        ty: Type::B8,
        name: PREFIX.to_owned(),
        dims: [Some(if has_whole_rows { WHOLE_ROWS_TURN_BYTES } else { TURN_BYTES } as u64)].into(),
        init: None,
    }
}

/// The statements before the body.
pub(super) fn before(module: &Module, copies: bool) -> Result<Vec<Statement>, PtxError> {
    let (version, architecture) = SLEEP_SINCE;
    let sleeps = module.version >= version && module.architecture() >= architecture;
    let text = HEAD
        .replace("SLEEP", if sleeps { "nanosleep.u32 100;" } else { "" })
        .replace("WAIT_ASYNC", if copies { "cp.async.wait_all;" } else { "" })
        .replace("SMS", &format!("{SMS_MAX}"));
    statements(&text)
}

/// The statements after the body.
pub(super) fn after() -> Result<Vec<Statement>, PtxError> {
    statements(END)
}

fn statements(text: &str) -> Result<Vec<Statement>, PtxError> {
    let named: String =
        text.replace("T_", &format!("{PREFIX}_")).replace(&format!("[{PREFIX}_]"), &format!("[{PREFIX}]"));
    let named = named.replace(&format!("[{PREFIX}_+"), &format!("[{PREFIX}+"));
    let module = Module::parse(&format!(".version 8.0 .target sm_90 .entry x() {{ {named} }}"))?;
    let body = |function: &Function| function.body.clone();
    Ok(module.functions().next().and_then(body).unwrap_or_default())
}
