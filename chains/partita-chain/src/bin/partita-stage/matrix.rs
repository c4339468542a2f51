//! The chain of the paper: each component multiplies the frame's matrix by its own (seed's table 1:
//! 120, 240, 360, 480 for S, M, L, XL).
//!
//! A frame is two halves, each as large as the chain's largest matrix. A component multiplies the
//! matrix at the start of one half into the start of the other; the first word of the frame's note
//! says which half has the result.
//!
//! The first component's inputs are in page-locked memory, and the last one's results return to
//! such memory, both by copies on the component's stream. The bytes after a matrix that is smaller
//! than the next component's are the same for every frame.

use partita_abi::stages::reference;
use partita_chain::{Component, Error, Frame};
use partita_driver::{Buffer, Gpu, HostBuffer, Stages};

use crate::Stage;

/// A component's size and complexity.
#[derive(Clone, Copy)]
struct Spec {
    n: u32,
    rounds: u32,
}

impl Spec {
    fn parse(text: &str) -> Result<Self, String> {
        let (size, rounds) = text.split_once(':').unwrap_or((text, "1"));
        let n = match size {
            "S" => 120,
            "M" => 240,
            "L" => 360,
            "XL" => 480,
            other => {
                other.parse().map_err(|_| format!("{other} is not a size: use S, M, L, XL or a number"))?
            }
        };
        let rounds = rounds.parse().map_err(|_| format!("{rounds} is not a number of rounds"))?;
        if n == 0 || n > 16384 {
            return Err(format!("a matrix of {n} × {n}, where 1 to 16384 are possible"));
        }
        Ok(Self { n, rounds })
    }

    fn floats(self) -> usize {
        self.n as usize * self.n as usize
    }

    /// Moves each element by one to the right, and halves it: exact, and bounded.
    fn factor(self) -> Vec<f32> {
        let n = self.n as usize;
        let mut factor = vec![0.0; n * n];
        (0..n).for_each(|row| {
            factor[row * n + (row + 1) % n] = 0.5 / self.rounds.max(1).next_power_of_two() as f32
        });
        factor
    }
}

/// Inputs that repeat in turn.
const INPUTS: u64 = 4;

/// A component of that chain.
pub struct Matrix<'g> {
    spec: Spec,
    factor: Buffer<'g>,
    half_floats: usize,
    /// The initial content of every frame, and as many matrices as [`INPUTS`]; of the first
    /// component.
    inputs: Option<(Buffer<'g>, Vec<HostBuffer<'g>>)>,
    /// Buffer for the last component's results without a check.
    result: Option<HostBuffer<'g>>,
    check: Option<Vec<Spec>>,
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn input(sequence: u64, floats: usize) -> Vec<f32> {
    let sequence = sequence % INPUTS;
    let mix = |at: u64| (at.wrapping_mul(0x9e37_79b9).wrapping_add(sequence.wrapping_mul(31)) >> 8) % 64;
    (0..floats as u64).map(|at| mix(at) as f32).collect()
}

/// The bytes after the matrices of a frame.
fn background(floats: usize) -> Vec<f32> {
    (0..floats).map(|at| (at % 61) as f32).collect()
}

impl<'g> Matrix<'g> {
    pub fn new(
        gpu: &'g Gpu<'g>,
        component: &Component<'_>,
        size: &str,
        check: Option<&str>,
    ) -> Result<Self, String> {
        let spec = Spec::parse(size)?;
        let half_floats = (component.plan().frame_bytes / 8) as usize;
        if spec.floats() > half_floats {
            return Err(format!(
                "frames of {} bytes do not hold two matrices of {} × {}; make them {} bytes",
                component.plan().frame_bytes,
                spec.n,
                spec.n,
                spec.floats() * 8
            ));
        }
        let factor = gpu.alloc(spec.floats() * 4).map_err(|error| error.to_string())?;
        factor.write(&bytes_of(&spec.factor())).map_err(|error| error.to_string())?;
        let check = check.map(|specs| specs.split(',').map(Spec::parse).collect()).transpose()?;
        let text = |error: partita_driver::Error| error.to_string();
        let inputs = component.is_first().then(|| {
            let half = bytes_of(&background(half_floats));
            let blank = gpu.alloc(2 * half.len()).map_err(text)?;
            blank.write(&[half.as_slice(), half.as_slice()].concat()).map_err(text)?;
            let matrix = |sequence| HostBuffer::of(gpu, &bytes_of(&input(sequence, spec.floats())));
            Ok::<_, String>((blank, (0..INPUTS).map(matrix).collect::<Result<_, _>>().map_err(text)?))
        });
        let has_result = component.is_last() && check.is_none();
        let result = has_result.then(|| HostBuffer::new(gpu, spec.floats() * 4).map_err(text)).transpose()?;
        Ok(Self { spec, factor, half_floats, inputs: inputs.transpose()?, result, check })
    }

    fn half_bytes(&self) -> u64 {
        self.half_floats as u64 * 4
    }
}

fn copied(source: partita_driver::Error) -> Error {
    Error::Driver { what: "a copy between frame and host", source: Box::new(source) }
}

impl Stage for Matrix<'_> {
    fn begin(&mut self, component: &Component<'_>, frame: &mut Frame<'_, '_>) -> Result<(), Error> {
        frame.meta_mut()[0] = 0;
        let Some((blank, inputs)) = &self.inputs else { return Ok(()) };
        let input = &inputs[(frame.sequence() % INPUTS) as usize];
        let whole = frame.part(0, blank.bytes() as u64)?;
        let front = frame.part(0, input.bytes() as u64)?;
        whole.copy_of(&blank.span(), component.stream()).map_err(copied)?;
        front.copy_from(input, component.stream()).map_err(copied)
    }

    fn work(
        &mut self,
        component: &Component<'_>,
        stages: &Stages<'_>,
        frame: &mut Frame<'_, '_>,
    ) -> Result<(), Error> {
        let half = frame.meta()[0] & 1;
        let bytes = self.half_bytes();
        let from = frame.part(half * bytes, bytes)?;
        let to = frame.part((half ^ 1) * bytes, bytes)?;
        let Spec { n, rounds } = self.spec;
        let launched = stages.matrix(component.stream(), &to, &from, &self.factor.span(), n, rounds);
        launched
            .map_err(|source| Error::Driver { what: "the product of matrices", source: Box::new(source) })?;
        if let Some(result) = &self.result {
            let matrix = to.part(0, result.bytes() as u64).map_err(copied)?;
            matrix.copy_to(result, component.stream()).map_err(copied)?;
        }
        frame.meta_mut()[0] = half ^ 1;
        Ok(())
    }

    fn end(&mut self, frame: &Frame<'_, '_>) -> Result<Option<String>, Error> {
        let Some(specs) = &self.check else { return Ok(None) };
        let half = (frame.meta()[0] & 1) as usize;
        let mut result = vec![0; self.spec.floats() * 4];
        frame.read(half as u64 * self.half_bytes(), &mut result)?;
        let behind = background(self.half_floats);
        let mut halves = [behind.clone(), behind];
        if let Some(first) = specs.first() {
            halves[0][..first.floats()].copy_from_slice(&input(frame.sequence(), first.floats()));
        }
        for (at, spec) in specs.iter().enumerate() {
            let [even, odd] = &mut halves;
            let (from, to) = if at % 2 == 0 { (even, odd) } else { (odd, even) };
            let factor = spec.factor();
            reference::matrix(
                &mut to[..spec.floats()],
                &from[..spec.floats()],
                &factor,
                spec.n as usize,
                spec.rounds,
                f32::mul_add,
            );
        }
        let expected = bytes_of(&halves[half][..self.spec.floats()]);
        let differs = expected.chunks(4).zip(result.chunks(4)).position(|(expected, got)| expected != got);
        Ok(differs.map(|at| format!("element {at} of the product differs from the host's")))
    }
}
