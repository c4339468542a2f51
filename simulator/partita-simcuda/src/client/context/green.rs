//! What makes a context a green one, and what holds launches to some TPCs.

use partita_abi::CuResult;
use partita_core::TpcSet;

use super::Context;
use super::stream::Stream;
use crate::client::resource::SmSet;

/// What a context has to be a green one.
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

/// What streams hold their launches to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Confines {
    /// A mask in the stream's structure: logical, set bits disable.
    pub mask: Option<[u32; 4]>,
    /// The physical disable words of a green context, where there is no such mask.
    pub green: Option<[u32; 8]>,
}

impl Stream {
    /// What holds the launch that begins now.
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
