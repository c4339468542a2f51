//! Initial values of variables.

use partita_ptx::PtxError;
use partita_ptx::Type;
use partita_ptx::module::{Init, Operand, Variable};

/// Longest initial value: a damaged declaration must not take all memory.
const BYTES_MAX: u64 = 1 << 30;

/// The bytes of a variable's initial value; empty if it has none. `address` has the addresses of
/// variables and functions.
///
/// # Errors
/// A value that does not fit the declaration, or the name of a symbol without an address.
pub fn initial_bytes(
    variable: &Variable,
    address: impl Fn(&str) -> Option<u64>,
) -> Result<Vec<u8>, PtxError> {
    let Some(init) = &variable.init else { return Ok(Vec::new()) };
    let wrong = |reason: String| PtxError::new(variable.at, variable.name.clone(), reason);
    let bytes = variable.bytes().filter(|bytes| *bytes <= BYTES_MAX);
    let bytes = bytes.ok_or_else(|| wrong("it has more than 1 GiB of initial values".to_owned()))?;
    let element = u64::from(variable.ty.bytes()) * u64::from(variable.vector);
    // Bytes of an element of each dimension, from the outermost to a single value.
    let mut strides = vec![bytes];
    for (depth, dim) in variable.dims.iter().enumerate() {
        let whole = strides[depth];
        let count = dim.unwrap_or(whole / element.max(1));
        strides.push(whole / count.max(1));
    }
    if variable.vector > 1 {
        strides.push(u64::from(variable.ty.bytes()));
    }
    let mut out = vec![0; bytes as usize];
    fill(variable, init, &strides, &mut out, &address).map_err(wrong)?;
    Ok(out)
}

fn fill(
    variable: &Variable,
    init: &Init,
    strides: &[u64],
    out: &mut [u8],
    address: &impl Fn(&str) -> Option<u64>,
) -> Result<(), String> {
    let items = match init {
        Init::List(items) => items,
        single => {
            let bytes = value(variable, single, address)?;
            let length = variable.ty.bytes() as usize;
            let place = out.get_mut(..length).ok_or("it has more initial values than room")?;
            place.copy_from_slice(&bytes[..length]);
            return Ok(());
        }
    };
    // A list that leaves out the inner braces has single values.
    let is_flat = items.iter().all(|item| !matches!(item, Init::List(_)));
    let stride = if is_flat { u64::from(variable.ty.bytes()) } else { strides.get(1).copied().unwrap_or(0) };
    for (index, item) in items.iter().enumerate() {
        let start = (index as u64).checked_mul(stride).and_then(|start| usize::try_from(start).ok());
        let rest = start.filter(|_| stride > 0).and_then(|start| out.get_mut(start..));
        let rest = rest.ok_or("it has more initial values than room")?;
        let length = rest.len().min(stride as usize);
        fill(variable, item, strides.get(1..).unwrap_or_default(), &mut rest[..length], address)?;
    }
    Ok(())
}

fn value(
    variable: &Variable,
    init: &Init,
    address: &impl Fn(&str) -> Option<u64>,
) -> Result<[u8; 8], String> {
    let bits = match init {
        Init::Address { name, offset, .. } => {
            let at = address(name).ok_or_else(|| format!("'{name}' has no address"))?;
            if variable.ty.bits() != 64 {
                return Err(format!("the address of '{name}' has 64 bits"));
            }
            at.wrapping_add_signed(*offset)
        }
        Init::Value(Operand::Integer(value)) if variable.ty.is_float() => {
            return Err(format!("{value} is no floating-point number"));
        }
        Init::Value(Operand::Integer(value)) => *value as u64,
        Init::Value(Operand::Single(bits)) if variable.ty == Type::F64 => {
            f64::from(f32::from_bits(*bits)).to_bits()
        }
        Init::Value(Operand::Single(bits)) => u64::from(*bits),
        Init::Value(Operand::Double(bits)) if variable.ty == Type::F32 => {
            u64::from((f64::from_bits(*bits) as f32).to_bits())
        }
        Init::Value(Operand::Double(bits)) => *bits,
        _ => return Err("it has an initial value that is no number and no address".to_owned()),
    };
    Ok(bits.to_le_bytes())
}
