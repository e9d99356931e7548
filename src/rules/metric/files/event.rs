//! Reads the scalars in one record of a TensorBoard event file: a protocol buffer, `tensorflow.Event`
//! (tensorflow/core/util/event.proto, core/framework/summary.proto, tensor.proto and types.proto). An example, in text
//! form: `wall_time: 1700000000.5 step: 10 summary { value { tag: "loss" simple_value: 0.25 } }`.
//!
//! Both forms are supported: `simple_value` (TensorFlow 1, tensorboardX, torch) and a tensor of rank 0 (TensorFlow 2,
//! Keras). Deliberately absent: all other content of a summary (histograms, images, text, graphs, data of plugins other
//! than `scalars`), and the fields that a scalar does not need.

use thiserror::Error;

/// One measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Scalar {
    /// Its name in the file.
    pub tag: String,
    /// Its value.
    pub value: f64,
    /// The global step.
    pub step: i64,
    /// When it was measured, in seconds since 1970.
    pub wall_time: f64,
}

/// The bytes are not a protocol buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not a protocol buffer")]
pub struct Malformed;

/// Reads an event's scalars, in order; most events have none or one. Errors: the bytes are not an event.
pub fn scalars(event: &[u8]) -> Result<Vec<Scalar>, Malformed> {
    let mut scalars = Vec::new();
    let (mut wall_time, mut step) = (0.0, 0);
    for field in Message(event) {
        match field? {
            (1, Field::Fixed64(bytes)) => wall_time = f64::from_le_bytes(bytes),
            (2, Field::Varint(number)) => step = number as i64,
            (5, Field::Bytes(summary)) => {
                for field in Message(summary) {
                    if let (1, Field::Bytes(value)) = field? {
                        scalars.extend(named_value(value)?);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(scalars.into_iter().map(|(tag, value)| Scalar { tag, value, step, wall_time }).collect())
}

/// A `Summary.Value`, if it is a scalar.
fn named_value(value: &[u8]) -> Result<Option<(String, f64)>, Malformed> {
    let (mut tag, mut number, mut is_scalar) = ("", None, true);
    for field in Message(value) {
        match field? {
            (1, Field::Bytes(text)) => tag = std::str::from_utf8(text).map_err(|_| Malformed)?,
            (2, Field::Fixed32(bytes)) => number = Some(f64::from(f32::from_le_bytes(bytes))),
            (8, Field::Bytes(bytes)) => number = tensor(bytes)?,
            (9, Field::Bytes(metadata)) => is_scalar = is_of_scalars(metadata)?,
            _ => {}
        }
    }
    Ok(number.filter(|_| is_scalar && !tag.is_empty()).map(|number| (tag.to_owned(), number)))
}

/// Whether a `SummaryMetadata` names the plugin for scalars, or no plugin.
fn is_of_scalars(metadata: &[u8]) -> Result<bool, Malformed> {
    for field in Message(metadata) {
        if let (1, Field::Bytes(plugin)) = field? {
            for field in Message(plugin) {
                if let (1, Field::Bytes(name)) = field? {
                    return Ok(name.is_empty() || name == b"scalars");
                }
            }
        }
    }
    Ok(true)
}

/// The numbers of `tensorflow.DataType`.
mod types {
    pub(in crate::metric) const FLOAT: u64 = 1;
    pub(in crate::metric) const DOUBLE: u64 = 2;
    pub(in crate::metric) const INT32: u64 = 3;
    pub(in crate::metric) const UINT8: u64 = 4;
    pub(in crate::metric) const INT16: u64 = 5;
    pub(in crate::metric) const INT8: u64 = 6;
    pub(in crate::metric) const INT64: u64 = 9;
    pub(in crate::metric) const BFLOAT16: u64 = 14;
    pub(in crate::metric) const UINT16: u64 = 17;
    pub(in crate::metric) const HALF: u64 = 19;
    pub(in crate::metric) const UINT32: u64 = 22;
    pub(in crate::metric) const UINT64: u64 = 23;
}

/// The number in a `TensorProto` of rank 0; `None` for any other shape or type.
fn tensor(tensor: &[u8]) -> Result<Option<f64>, Malformed> {
    let (mut dtype, mut content, mut listed, mut has_rank_0) = (0, &[][..], None, true);
    for field in Message(tensor) {
        match field? {
            (1, Field::Varint(number)) => dtype = number,
            (2, Field::Bytes(shape)) => {
                for field in Message(shape) {
                    // A dimension, or an unknown rank.
                    has_rank_0 &= !matches!(field?, (2, _) | (3, Field::Varint(1..)));
                }
            }
            (4, Field::Bytes(bytes)) => content = bytes,
            (5..=7 | 10 | 13 | 16 | 17, field) if listed.is_none() => listed = first(&field, dtype)?,
            _ => {}
        }
    }
    if !has_rank_0 {
        return Ok(None);
    }
    let size = match dtype {
        types::UINT8 | types::INT8 => 1,
        types::INT16 | types::UINT16 | types::HALF | types::BFLOAT16 => 2,
        types::FLOAT | types::INT32 | types::UINT32 => 4,
        types::DOUBLE | types::INT64 | types::UINT64 => 8,
        _ => return Ok(None),
    };
    if content.is_empty() {
        // A tensor without values contains zeros.
        return Ok(Some(listed.unwrap_or(0.0)));
    }
    let mut bytes = [0; 8];
    bytes.get_mut(..content.len()).filter(|b| b.len() == size).ok_or(Malformed)?.copy_from_slice(content);
    Ok(Some(number_of_type(dtype, u64::from_le_bytes(bytes))))
}

/// The first of the values in a tensor's field, which may be single or packed. Floats have a fixed width; integers, and
/// the bits of halves, are varints.
fn first(field: &Field<'_>, dtype: u64) -> Result<Option<f64>, Malformed> {
    Ok(match (field, dtype) {
        (Field::Fixed32(bytes), _) => Some(f64::from(f32::from_le_bytes(*bytes))),
        (Field::Fixed64(bytes), _) => Some(f64::from_le_bytes(*bytes)),
        (Field::Varint(bits), _) => Some(number_of_type(dtype, *bits)),
        (Field::Bytes([]), _) => None,
        (Field::Bytes(packed), types::FLOAT) => {
            Some(f64::from(f32::from_le_bytes(*packed.first_chunk().ok_or(Malformed)?)))
        }
        (Field::Bytes(packed), types::DOUBLE) => Some(f64::from_le_bytes(*packed.first_chunk().ok_or(Malformed)?)),
        (Field::Bytes(packed), _) => Some(number_of_type(dtype, varint(&mut &packed[..])?)),
    })
}

/// The number in the low bits of a varint, according to its type.
fn number_of_type(dtype: u64, bits: u64) -> f64 {
    match dtype {
        types::FLOAT => f64::from(f32::from_bits(bits as u32)),
        types::DOUBLE => f64::from_bits(bits),
        types::HALF => half(bits as u16),
        types::BFLOAT16 => f64::from(f32::from_bits((bits as u32) << 16)),
        types::INT8 => f64::from(bits as i8),
        types::INT16 => f64::from(bits as i16),
        types::INT32 => f64::from(bits as i32),
        types::INT64 => bits as i64 as f64,
        _ => bits as f64,
    }
}

/// IEEE 754 binary16.
fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * f64::powi(2.0, -24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * f64::powi(2.0, exponent - 25),
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// The fields of a message, each with its number.
struct Message<'a>(&'a [u8]);

enum Field<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
}

impl<'a> Message<'a> {
    fn field(&mut self) -> Result<(u64, Field<'a>), Malformed> {
        let key = varint(&mut self.0)?;
        let field = match key & 7 {
            0 => Field::Varint(varint(&mut self.0)?),
            1 => Field::Fixed64(self.chunk()?),
            2 => {
                let length = usize::try_from(varint(&mut self.0)?).map_err(|_| Malformed)?;
                let (bytes, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
                self.0 = rest;
                Field::Bytes(bytes)
            }
            5 => Field::Fixed32(self.chunk()?),
            // Groups, which these messages do not contain.
            _ => return Err(Malformed),
        };
        Ok((key >> 3, field))
    }

    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (chunk, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*chunk)
    }
}

impl<'a> Iterator for Message<'a> {
    type Item = Result<(u64, Field<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// Seven bits in each byte, lowest first; at most ten bytes.
fn varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut number = 0;
    for shift in (0..70).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or(Malformed)?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn number(mut number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }

    fn varint_field(field: u64, value: u64) -> Vec<u8> {
        [number(field << 3), number(value)].concat()
    }

    fn bytes_field(field: u64, bytes: &[u8]) -> Vec<u8> {
        [&number(field << 3 | 2)[..], &number(bytes.len() as u64), bytes].concat()
    }

    fn simple(tag: &str, value: f32) -> Vec<u8> {
        [bytes_field(1, tag.as_bytes()), number(2 << 3 | 5), value.to_le_bytes().to_vec()].concat()
    }

    fn event(values: &[Vec<u8>]) -> Vec<u8> {
        let summary: Vec<u8> = values.iter().flat_map(|value| bytes_field(1, value)).collect();
        let time = [&[1 << 3 | 1][..], &1.7e9f64.to_le_bytes()].concat();
        [time, varint_field(2, 10), bytes_field(5, &summary)].concat()
    }

    /// The value of a tensor with these fields.
    fn tensor_value(fields: &[Vec<u8>]) -> Option<f64> {
        let value = [bytes_field(1, b"loss"), bytes_field(8, &fields.concat())].concat();
        let all = scalars(&event(&[value])).expect("an event");
        assert!(all.len() < 2);
        all.first().map(|scalar| scalar.value)
    }

    #[test]
    fn a_simple_value_has_its_tag_step_and_time() {
        let of = |tag: &str, value| Scalar { tag: tag.to_owned(), value, step: 10, wall_time: 1.7e9 };
        let read = scalars(&event(&[simple("train/loss", 0.25), simple("acc", f32::INFINITY), simple("", 1.0)]));
        assert_eq!(read, Ok(vec![of("train/loss", 0.25), of("acc", f64::INFINITY)]));
        assert_eq!(scalars(&[]), Ok(vec![]));
    }

    #[test]
    fn a_negative_step_is_read() {
        let summary = bytes_field(5, &bytes_field(1, &simple("a", 1.0)));
        let event = [varint_field(2, -3i64 as u64), summary].concat();
        assert_eq!(scalars(&event).map(|all| all[0].step), Ok(-3));
    }

    #[test]
    fn a_tensor_of_rank_0_is_a_scalar_in_every_type_and_form() {
        let typed = |dtype, field| tensor_value(&[varint_field(1, dtype), bytes_field(2, &[]), field]);
        assert_eq!(typed(types::FLOAT, bytes_field(5, &0.25f32.to_le_bytes())), Some(0.25));
        assert_eq!(typed(types::FLOAT, [&[5 << 3 | 5][..], &0.25f32.to_le_bytes()].concat()), Some(0.25));
        assert_eq!(typed(types::DOUBLE, bytes_field(6, &0.1f64.to_le_bytes())), Some(0.1));
        assert_eq!(typed(types::INT32, varint_field(7, -7i64 as u64)), Some(-7.0));
        assert_eq!(typed(types::INT64, bytes_field(10, &number(300))), Some(300.0));
        assert_eq!(typed(types::UINT64, varint_field(17, u64::MAX)), Some(u64::MAX as f64));
        assert_eq!(typed(types::HALF, bytes_field(13, &number(0x3555))), Some(0.333251953125));
        assert_eq!(typed(types::BFLOAT16, varint_field(13, 0x3eab)), Some(0.333984375));
        let content = |dtype, bytes: &[u8]| typed(dtype, bytes_field(4, bytes));
        assert_eq!(content(types::FLOAT, &0.25f32.to_le_bytes()), Some(0.25));
        assert_eq!(content(types::INT16, &(-2i16).to_le_bytes()), Some(-2.0));
        assert_eq!(content(types::UINT8, &[200]), Some(200.0));
        assert_eq!(content(types::DOUBLE, &0.1f64.to_le_bytes()), Some(0.1));
        assert_eq!(content(types::INT8, &[0xfe]), Some(-2.0));
        assert_eq!(content(types::INT64, &(-2i64).to_le_bytes()), Some(-2.0));
        assert_eq!(content(types::UINT16, &[0xff, 0xff]), Some(65535.0));
        assert_eq!(content(types::UINT32, &[0xff; 4]), Some(4294967295.0));
        assert_eq!(tensor_value(&[varint_field(1, types::FLOAT)]), Some(0.0));
    }

    #[test]
    fn halves_are_read_exactly() {
        let expected =
            [(0, 0.0), (1, 5.960464477539063e-8), (0x3c00, 1.0), (0x7bff, 65504.0), (0xfc00, f64::NEG_INFINITY)];
        for (bits, value) in expected {
            assert_eq!(half(bits), value, "{bits:x}");
        }
        assert!(half(0x7e00).is_nan() && half(0x8000).is_sign_negative());
    }

    #[test]
    fn other_content_is_skipped() {
        let vector = bytes_field(2, &bytes_field(2, &varint_field(1, 1)));
        let float = bytes_field(5, &0.5f32.to_le_bytes());
        assert_eq!(tensor_value(&[varint_field(1, types::FLOAT), vector, float.clone()]), None);
        assert_eq!(tensor_value(&[varint_field(1, 7), bytes_field(8, b"text")]), None);
        let with_plugin = |name: &str| {
            let metadata = bytes_field(9, &bytes_field(1, &bytes_field(1, name.as_bytes())));
            let tensor = bytes_field(8, &[varint_field(1, types::FLOAT), float.clone()].concat());
            scalars(&event(&[[bytes_field(1, b"a"), metadata, tensor].concat()])).map(|all| all.len())
        };
        assert_eq!((with_plugin("scalars"), with_plugin("hparams")), (Ok(1), Ok(0)));
        let histogram = [bytes_field(1, b"weights"), bytes_field(5, b"\x09\0\0\0\0\0\0\0\0")].concat();
        assert_eq!(scalars(&event(&[histogram, simple("loss", 1.0)])).map(|all| all.len()), Ok(1));
    }

    #[test]
    fn invalid_bytes_are_an_error() {
        for bytes in
            [&b"\x0a\x7f"[..], b"\x09\0", b"\x0b", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x2a\x02\x0a\x05"]
        {
            assert_eq!(scalars(bytes), Err(Malformed), "{bytes:x?}");
        }
        assert_eq!(tensor_short(), Err(Malformed));
    }

    fn tensor_short() -> Result<Vec<Scalar>, Malformed> {
        let tensor = [varint_field(1, types::DOUBLE), bytes_field(4, &[0; 4])].concat();
        scalars(&event(&[[bytes_field(1, b"a"), bytes_field(8, &tensor)].concat()]))
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in any::<Vec<u8>>(), cut in any::<prop::sample::Index>()) {
            let _ = scalars(&bytes);
            let good = event(&[simple("loss", 0.5), [bytes_field(1, b"a"), bytes_field(8, &bytes)].concat()]);
            let _ = scalars(&good[..cut.index(good.len())]);
        }
    }
}
