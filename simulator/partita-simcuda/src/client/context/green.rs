//! Green contexts, and the sets to which streams restrict their launches.

use partita_abi::CuResult;
use partita_core::TpcSet;

use super::Context;
use super::stream::Stream;
use crate::client::resource::SmSet;

/// The green part of a context.
#[derive(Debug)]
pub struct Green {
    /// The primary context, which owns all that is made here.
    pub primary: &'static Context,
    /// Its SMs.
    pub sms: SmSet,
    /// The physical disable words of its launches.
    pub disable: [u32; 8],
}

impl Green {
    /// Its TPCs, logical.
    pub fn set(&self) -> TpcSet {
        self.sms.set
    }
}

/// The restrictions of a stream's launches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Confines {
    /// A mask in the stream's structure: logical, set bits disable.
    pub mask: Option<[u32; 4]>,
    /// The physical disable words of a green context, where there is no such mask.
    pub green: Option<[u32; 8]>,
}

impl Stream {
    /// The restrictions of the launch that begins now.
    ///
    /// # Errors
    /// Those of [`Stream::enter_launch`].
    #[inline]
    pub fn confines(&self) -> Result<Confines, CuResult> {
        let mask = self.enter_launch()?;
        let green = match mask {
            None => self.context().green().map(|green| green.disable),
            Some(_) => None,
        };
        Ok(Confines { mask, green })
    }
}
