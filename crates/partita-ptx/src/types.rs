//! The types of PTX.

use core::fmt;

macro_rules! types {
    ($($name:ident $text:literal $bits:literal,)*) => {
        /// A type of a register, a variable or an operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the names are PTX's own")]
        pub enum Type {
            $($name,)*
        }

        impl Type {
            /// All types.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// PTX's name, without the dot.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Length in bits; 1 for predicates.
            #[must_use]
            pub fn bits(self) -> u32 {
                match self { $(Self::$name => $bits,)* }
            }
        }
    };
}

types! {
    Pred "pred" 1,
    B8 "b8" 8,
    B16 "b16" 16,
    B32 "b32" 32,
    B64 "b64" 64,
    B128 "b128" 128,
    U8 "u8" 8,
    U16 "u16" 16,
    U32 "u32" 32,
    U64 "u64" 64,
    S8 "s8" 8,
    S16 "s16" 16,
    S32 "s32" 32,
    S64 "s64" 64,
    F16 "f16" 16,
    F16x2 "f16x2" 32,
    BF16 "bf16" 16,
    BF16x2 "bf16x2" 32,
    F32 "f32" 32,
    F64 "f64" 64,
    TexRef "texref" 64,
    SamplerRef "samplerref" 64,
    SurfRef "surfref" 64,
}

impl Type {
    /// The type of this name, without the dot.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|ty| ty.name() == name)
    }

    /// Length in memory, in bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// Whether it is a signed integer.
    #[must_use]
    pub fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    /// Whether it is a floating-point type of one element.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32 | Self::F64)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
