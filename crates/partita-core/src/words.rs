//! Limits whose value is one of a few words.

use core::fmt;

/// A limit whose value is one of a few words: users, JSON, batch systems and help texts name the
/// values alike. [`words!`](crate::words) declares one.
pub trait Words: Copy + Eq + Sized + 'static {
    /// What there is to choose, in a sentence.
    const ABOUT: &'static str;
    /// The values, in the order of help texts.
    const VALUES: &'static [Self];
    /// Their words, in this order.
    const WORDS: &'static [&'static str];
    /// What each means, in this order.
    const MEANINGS: &'static [&'static str];
}

/// Declares a limit whose value is one of a few words, with its default after the colon.
///
/// The comments are its description and the meaning of each value, for help and API documents too.
///
/// ```
/// partita_core::words! {
///     /// What a full tank means.
///     pub enum Full: Stop {
///         /// The pump stops.
///         Stop => "stop",
///         /// The rest runs over.
///         Spill => "run-over",
///     }
/// }
///
/// assert_eq!("run-over".parse(), Ok(Full::Spill));
/// assert_eq!(Full::default().to_string(), "stop");
/// let error = "burst".parse::<Full>().unwrap_err();
/// assert_eq!(error.to_string(), "it is stop or run-over");
/// ```
#[macro_export]
macro_rules! words {
    (
        $(#[doc = $about:literal])+
        $vis:vis enum $Type:ident: $default:ident {
            $($(#[doc = $meaning:literal])+ $Value:ident $(= $number:literal)? => $word:literal,)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $vis enum $Type {
            $($(#[doc = $meaning])+ $Value $(= $number)?,)+
        }

        impl $Type {
            /// The word for it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Value => $word,)+
                }
            }
        }

        impl $crate::Words for $Type {
            const ABOUT: &'static str = concat!($($about),+).trim_ascii();
            const VALUES: &'static [Self] = &[$(Self::$Value),+];
            const WORDS: &'static [&'static str] = &[$($word),+];
            const MEANINGS: &'static [&'static str] = &[$(concat!($($meaning),+).trim_ascii()),+];
        }

        impl ::core::default::Default for $Type {
            fn default() -> Self {
                Self::$default
            }
        }

        impl ::core::fmt::Display for $Type {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.pad(self.name())
            }
        }

        impl ::core::str::FromStr for $Type {
            type Err = $crate::UnknownWord;

            fn from_str(text: &str) -> Result<Self, $crate::UnknownWord> {
                match text {
                    $($word => Ok(Self::$Value),)+
                    _ => Err($crate::UnknownWord(<Self as $crate::Words>::WORDS)),
                }
            }
        }
    };
}

/// A word that a limit does not have; it lists the words that the limit has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownWord(pub &'static [&'static str]);

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is ")?;
        for (at, word) in self.0.iter().enumerate() {
            let before = match at {
                0 => "",
                _ if at + 1 == self.0.len() => " or ",
                _ => ", ",
            };
            write!(f, "{before}{word}")?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownWord {}
