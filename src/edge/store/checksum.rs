//! Cloud Storage's header for what an object's crc32c is.

use base64::prelude::{BASE64_STANDARD, Engine};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

/// The crc32c of a body: with a request it is sent along, with an answer it is what the store holds. Cloud Storage's
/// `x-goog-hash: crc32c=BASE64`, big-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Checksum(pub(super) u32);

pub(super) const GOOGLE_HASH: HeaderName = HeaderName::from_static("x-goog-hash");

/// What a request says of its body.
pub(super) fn sent(Checksum(crc32c): Checksum) -> Option<HeaderValue> {
    HeaderValue::try_from(format!("crc32c={}", BASE64_STANDARD.encode(crc32c.to_be_bytes()))).ok()
}

/// What an answer says the object's crc32c is. `x-goog-hash: crc32c=n03x6A==,md5=...`, or one header each.
pub(super) fn checksum(headers: &HeaderMap) -> Option<Checksum> {
    let values = headers.get_all(GOOGLE_HASH).iter().filter_map(|v| v.to_str().ok());
    let text = values.flat_map(|v| v.split(',')).find_map(|v| v.trim().strip_prefix("crc32c="))?;
    let bytes = BASE64_STANDARD.decode(text).ok()?.try_into().ok()?;
    Some(Checksum(u32::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_goes_out_and_comes_back_as_cloud_storage_spells_it() {
        // Of "123456789": the check value of CRC-32C.
        assert_eq!(sent(Checksum(0xe306_9283)), Some(HeaderValue::from_static("crc32c=4waSgw==")));
        let mut headers = HeaderMap::new();
        assert_eq!(checksum(&headers), None);
        headers.append(GOOGLE_HASH, HeaderValue::from_static("md5=AAAAAAAAAAAAAAAAAAAAAA==,crc32c=4waSgw=="));
        assert_eq!(checksum(&headers), Some(Checksum(0xe306_9283)));
        headers.insert(GOOGLE_HASH, HeaderValue::from_static("crc32c=!!!!!!=="));
        assert_eq!(checksum(&headers), None);
    }
}
