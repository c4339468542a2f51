//! The values of a warp's threads, and operations on all of them at once.

use partita_ptx::Type;

/// Threads of a warp.
pub const LANES: usize = 32;

/// One value of each thread. A value shorter than 64 bits has zeroes above it.
pub(crate) type Lanes = [u64; LANES];

pub(crate) type Map1 = fn(&Lanes, &mut Lanes);
pub(crate) type Map2 = fn(&Lanes, &Lanes, &mut Lanes);
pub(crate) type Map3 = fn(&Lanes, &Lanes, &Lanes, &mut Lanes);

/// A result of one thread, as the bits of a register.
pub(crate) trait Value {
    fn to(self) -> u64;
}

impl Value for bool {
    fn to(self) -> u64 {
        u64::from(self)
    }
}

/// An operation of one to three operands without side effects. It computes threads that do not
/// take part as well; their results are dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Map {
    One(Map1),
    Two(Map2),
    Three(Map3),
}

/// A choice of the operation by type; `None` if there is none for it.
pub(crate) type By<T> = fn(Type) -> Option<T>;

/// All bits of a value of so many bits.
pub(crate) const fn ones(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// The value of a signed number of so many bits.
pub(crate) const fn extended(value: u64, bits: u32) -> u64 {
    if bits == 0 || bits >= 64 {
        return value;
    }
    ((value << (64 - bits)) as i64 >> (64 - bits)) as u64
}

/// Functions that choose an operation by type. The body computes one thread's result.
macro_rules! maps {
    ($kind:ident $choose:ident $map:ident:
        $($(#[$doc:meta])* $name:ident($($operand:ident),+) $body:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name(ty: partita_ptx::Type) -> Option<crate::lanes::$map> {
            #[allow(clippy::needless_range_loop, reason = "one index for several arrays")]
            fn run<T: $kind>($($operand: &crate::lanes::Lanes,)+ out: &mut crate::lanes::Lanes) {
                for lane in 0..crate::lanes::LANES {
                    let ($($operand,)+) = ($(T::of($operand[lane]),)+);
                    out[lane] = crate::lanes::Value::to($body);
                }
            }
            $choose!(ty, run)
        }
    )*};
}
pub(crate) use maps;
