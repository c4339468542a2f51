//! A chain that detects bright spots: decode, enhance, detect.
//!
//! A frame is two pictures of bytes, followed by the eight bytes of the result. The coded picture
//! arrives in the first, is decoded into the second and sharpened back into the first.

use partita_abi::stages::reference;
use partita_chain::{Component, Error, Frame};
use partita_driver::Stages;

use crate::Stage;

/// The threshold for bright.
const THRESHOLD: u32 = 250;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Decode,
    Enhance,
    Detect,
}

/// A component of that chain.
pub struct Image {
    kind: Kind,
    width: u32,
    height: u32,
    check: bool,
}

/// The picture of a camera that looks at a moving light.
fn picture(sequence: u64, width: u32, height: u32) -> Vec<u8> {
    let light = (sequence % u64::from(width), sequence * 3 % u64::from(height));
    (0..u64::from(width) * u64::from(height))
        .map(|at| {
            let (x, y) = (at % u64::from(width), at / u64::from(width));
            let far = x.abs_diff(light.0) + y.abs_diff(light.1);
            (255u64.saturating_sub(far * 9) as u8).max((x * 3 + y * 5 + sequence) as u8 & 0x1f)
        })
        .collect()
}

impl Image {
    pub fn new(kind: &str, component: &Component<'_>, size: &str, check: bool) -> Result<Self, String> {
        let kind = match kind {
            "decode" => Kind::Decode,
            "enhance" => Kind::Enhance,
            "detect" => Kind::Detect,
            other => return Err(format!("{other} is not a stage; {}", crate::USAGE)),
        };
        let sides = size
            .split_once('x')
            .and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
        let (width, height): (u32, u32) = sides.ok_or_else(|| format!("{size} is no WIDTHxHEIGHT"))?;
        let image = Self { kind, width, height, check };
        let needed = image.pixels().checked_mul(2).and_then(|both| both.checked_add(16));
        match needed {
            Some(needed) if needed <= component.plan().frame_bytes && width > 0 && height > 0 => Ok(image),
            _ => Err(format!(
                "frames of {} bytes do not hold two pictures of {size} and a result",
                component.plan().frame_bytes
            )),
        }
    }

    fn pixels(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Offset of the result: after both pictures, aligned.
    fn result_at(&self) -> u64 {
        (2 * self.pixels()).next_multiple_of(8)
    }
}

impl Stage for Image {
    fn begin(&mut self, _: &Component<'_>, frame: &mut Frame<'_, '_>) -> Result<(), Error> {
        let picture = picture(frame.sequence(), self.width, self.height);
        let mut coded = vec![0; picture.len()];
        reference::encode(&mut coded, &picture, self.width as usize);
        frame.write(&coded)
    }

    fn work(
        &mut self,
        component: &Component<'_>,
        stages: &Stages<'_>,
        frame: &mut Frame<'_, '_>,
    ) -> Result<(), Error> {
        let (stream, pixels) = (component.stream(), self.pixels());
        let (first, second) = (frame.part(0, pixels)?, frame.part(pixels, pixels)?);
        let launched = match self.kind {
            Kind::Decode => stages.decode(stream, &second, &first, self.width, self.height),
            Kind::Enhance => stages.enhance(stream, &first, &second, self.width, self.height),
            Kind::Detect => stages.detect(stream, &frame.part(self.result_at(), 8)?, &first, THRESHOLD),
        };
        launched.map_err(|source| Error::Driver { what: "work on a picture", source: Box::new(source) })
    }

    fn end(&mut self, frame: &Frame<'_, '_>) -> Result<Option<String>, Error> {
        let mut found = [0; 8];
        frame.read(self.result_at(), &mut found)?;
        if !self.check {
            return Ok(None);
        }
        let picture = picture(frame.sequence(), self.width, self.height);
        let mut sharp = vec![0; picture.len()];
        reference::enhance(&mut sharp, &picture, self.width as usize, self.height as usize);
        let [count, best] = reference::detect(&sharp, THRESHOLD);
        let expected: Vec<u8> = [count, best].iter().flat_map(|word| word.to_le_bytes()).collect();
        Ok((expected != found).then(|| format!("found {found:?}, the host {expected:?}")))
    }
}
