//! Cloud Storage's header for the CRC-32C of an object.

use base64::prelude::{BASE64_STANDARD, Engine};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

/// The CRC-32C of a body: of the bytes sent, or of the stored object. Big-endian in `x-goog-hash: crc32c=BASE64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Checksum(pub(super) u32);

pub(super) const GOOGLE_HASH: HeaderName = HeaderName::from_static("x-goog-hash");

pub(super) fn header_value(Checksum(crc32c): Checksum) -> Option<HeaderValue> {
    HeaderValue::try_from(format!("crc32c={}", BASE64_STANDARD.encode(crc32c.to_be_bytes()))).ok()
}

/// Reads the checksum from a response: `x-goog-hash: crc32c=n03x6A==,md5=...`, or one header each.
pub(super) fn of_response(headers: &HeaderMap) -> Option<Checksum> {
    let values = headers.get_all(GOOGLE_HASH).iter().filter_map(|v| v.to_str().ok());
    let text = values.flat_map(|v| v.split(',')).find_map(|v| v.trim().strip_prefix("crc32c="))?;
    let bytes = BASE64_STANDARD.decode(text).ok()?.try_into().ok()?;
    Some(Checksum(u32::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_written_and_read_in_cloud_storages_format() {
        // The check value of CRC-32C, the sum of "123456789".
        assert_eq!(header_value(Checksum(0xe306_9283)), Some(HeaderValue::from_static("crc32c=4waSgw==")));
        let mut headers = HeaderMap::new();
        assert_eq!(of_response(&headers), None);
        headers.append(GOOGLE_HASH, HeaderValue::from_static("md5=AAAAAAAAAAAAAAAAAAAAAA==,crc32c=4waSgw=="));
        assert_eq!(of_response(&headers), Some(Checksum(0xe306_9283)));
        headers.insert(GOOGLE_HASH, HeaderValue::from_static("crc32c=!!!!!!=="));
        assert_eq!(of_response(&headers), None);
    }
}
