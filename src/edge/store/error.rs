//! What went wrong with a store, as far as a caller may act on it, in a text without secrets.

use std::error::Error;
use std::io;

use hyper::StatusCode;
use hyper::http::response::Parts;

use crate::edge::host::limits;
use crate::edge::store::clouds::access::Access;

/// Its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The object is not there.
    Absent,
    /// No space or quota left.
    Full,
    /// It may not be written, or not be read: permissions, or a read-only file system.
    Denied,
    /// There is no such bucket, or it is in another region.
    NoBucket,
    /// What should be a directory is a file.
    NoDirectory,
    /// There are no credentials.
    NoCredentials,
    /// The credentials are not valid, or no longer valid.
    NotBelieved,
    /// The same, but the answer may change in a moment.
    Outdated,
    /// It does not know what was asked of it.
    Unsupported,
    /// No answer, or the answer is "later".
    Unreachable,
    /// This process or machine has reached a limit of its own; what to do about it.
    Limit(&'static str),
    /// Anything else.
    Other,
}

impl Trouble {
    /// The name for counters.
    pub fn word(self) -> &'static str {
        match self {
            Trouble::Absent => "absent",
            Trouble::Full => "full",
            Trouble::Denied => "denied",
            Trouble::NoBucket => "no_bucket",
            Trouble::NoDirectory => "no_directory",
            Trouble::NoCredentials => "no_credentials",
            Trouble::NotBelieved | Trouble::Outdated => "not_believed",
            Trouble::Unsupported => "unsupported",
            Trouble::Unreachable => "unreachable",
            Trouble::Limit(_) => "limit",
            Trouble::Other => "other",
        }
    }

    /// Whether it may pass by itself.
    pub fn may_pass(self) -> bool {
        matches!(self, Trouble::Unreachable | Trouble::Outdated)
    }
}

/// A failed operation on a store.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {place}: {detail}")]
pub struct StoreError {
    action: &'static str,
    place: String,
    detail: String,
    /// Its kind.
    pub trouble: Trouble,
}

impl StoreError {
    pub(super) fn new(action: &'static str, place: String, detail: String, trouble: Trouble) -> StoreError {
        StoreError { action, place, detail, trouble }
    }

    /// Whether it was said of the object and not of the store, as an answer that is spoilt on its way may be too: to be
    /// asked once more.
    pub fn is_doubtful(&self) -> bool {
        matches!(
            self.trouble,
            Trouble::Absent | Trouble::Unsupported | Trouble::NoDirectory | Trouble::Limit(_) | Trouble::Other
        )
    }
}

/// What failed, before it is known at what.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) trouble: Trouble,
    pub(super) detail: String,
    /// Whether it is that an object is there already.
    pub(super) says_there_is: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoAnswer(pub(super) String);

/// Nothing proves that it is the store that answers.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NotTrusted(pub(super) String);

impl Failed {
    pub(super) fn new(trouble: Trouble, detail: String) -> Failed {
        Failed { trouble, detail, says_there_is: false }
    }

    pub(super) fn of_credentials(detail: String) -> Failed {
        Failed::new(Trouble::NoCredentials, detail)
    }

    pub(super) fn of(self, action: &'static str, place: String, access: &Access) -> StoreError {
        StoreError { action, place, detail: access.censored(self.detail), trouble: self.trouble }
    }

    pub(super) fn no_credentials(error: &object_store::Error, way_out: &str) -> Failed {
        let Failed { trouble, detail, .. } = Failed::from(error);
        let what = if trouble == Trouble::Unreachable { "no credentials are to be had" } else { "no credentials" };
        Failed::of_credentials(format!("{what} ({detail}); {way_out}"))
    }
}

impl From<&io::Error> for Failed {
    fn from(error: &io::Error) -> Failed {
        let says_there_is = error.kind() == io::ErrorKind::AlreadyExists;
        Failed { trouble: kind_of(error), detail: error.to_string(), says_there_is }
    }
}

impl From<&object_store::Error> for Failed {
    fn from(error: &object_store::Error) -> Failed {
        let mut cause: &dyn Error = error;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        if let Some(NoAnswer(detail)) = cause.downcast_ref::<NoAnswer>() {
            return Failed::new(Trouble::Unreachable, detail.clone());
        }
        if let Some(NotTrusted(detail)) = cause.downcast_ref::<NotTrusted>() {
            return Failed::of_credentials(detail.clone());
        }
        let text = cause.to_string();
        let answer = Answer::read(&text);
        let trouble = answer.trouble().unwrap_or(match error {
            object_store::Error::NotFound { .. } => Trouble::Absent,
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
                Trouble::Denied
            }
            _ => Trouble::Other,
        });
        let says_there_is = matches!(error, object_store::Error::AlreadyExists { .. });
        Failed { trouble, detail: answer.in_words(&text), says_there_is }
    }
}

/// The status of what AWS says with 400, and asks for again: a body that came too slowly, a token service that has too many
/// to serve. The crate asks again where the status says so.
pub(super) fn of_the_moment(words: &str) -> Option<StatusCode> {
    match Answer::read(words).code? {
        "RequestTimeout" => Some(StatusCode::REQUEST_TIMEOUT),
        "Throttling" | "ThrottlingException" | "RequestLimitExceeded" | "IDPCommunicationError" => {
            Some(StatusCode::TOO_MANY_REQUESTS)
        }
        _ => None,
    }
}

/// In a refusal's form, where S3 says that the bucket is in another region. It says so with a redirection, of which the
/// crate hands on no more than that it is one.
pub(super) fn elsewhere(head: &Parts) -> Option<String> {
    let region = head.headers.get("x-amz-bucket-region").filter(|_| head.status.is_redirection())?.to_str().ok()?;
    Some(format!(
        "<Code>PermanentRedirect</Code><Message>the bucket is in the region {region}: set AWS_REGION={region}</Message>"
    ))
}

/// What a body says, as one short line.
pub(super) fn in_words(body: &str) -> String {
    Answer::read(body).in_words(body)
}

/// What a store's refusal says: the crate hands on the status and the body only as a text.
/// `Server returned non-2xx status code: 403 Forbidden: <?xml ...><Error><Code>AccessDenied</Code>...`
struct Answer<'a> {
    status: Option<u16>,
    /// The machine-readable code of the XML body.
    code: Option<&'a str>,
    message: Option<&'a str>,
    /// S3's answer for a bucket of another region names no place.
    is_redirect: bool,
}

impl<'a> Answer<'a> {
    fn read(text: &'a str) -> Answer<'a> {
        let status = text.split_once("status code: ").and_then(|(_, rest)| rest.get(..3)?.parse().ok());
        let element = |name: &str| {
            let (_, rest) = text.split_once(&format!("<{name}>"))?;
            rest.split_once('<').map(|(value, _)| value.lines().next().unwrap_or_default().trim())
        };
        let is_redirect = text.starts_with("Received redirect");
        Answer { status, code: element("Code"), message: element("Message").filter(|m| !m.is_empty()), is_redirect }
    }

    fn trouble(&self) -> Option<Trouble> {
        Some(match (self.code.unwrap_or_default(), self.status) {
            ("NoSuchBucket" | "ContainerNotFound" | "PermanentRedirect" | "AuthorizationHeaderMalformed", _)
            | (_, Some(301 | 307)) => Trouble::NoBucket,
            _ if self.is_redirect => Trouble::NoBucket,
            // Two creations met: neither need have been done.
            ("ConditionalRequestConflict" | "OperationAborted", _) => Trouble::Unreachable,
            // S3's code, with status 400, for a body that came too slowly.
            ("RequestTimeout", _) => Trouble::Unreachable,
            (
                "ExpiredToken"
                | "InvalidToken"
                | "InvalidTokenId"
                | "TokenRefreshRequired"
                | "InvalidAccessKeyId"
                | "SignatureDoesNotMatch"
                | "RequestTimeTooSkewed"
                | "RequestExpired"
                | "AuthenticationFailed"
                | "InvalidAuthenticationInfo",
                _,
            ) => Trouble::NotBelieved,
            ("QuotaExceeded" | "InsufficientStorage", _) | (_, Some(507)) => Trouble::Full,
            // Cloud Storage's for a token that has run out.
            (_, Some(401)) => Trouble::NotBelieved,
            (_, Some(403)) => Trouble::Denied,
            ("NotImplemented", _) | (_, Some(405)) => Trouble::Unsupported,
            (_, Some(408 | 429 | 500..=599)) => Trouble::Unreachable,
            _ => return None,
        })
    }

    /// One short line. Bodies in full hold what was signed.
    fn in_words(&self, text: &str) -> String {
        let words = match (self.status, self.code) {
            (None, None) => text.lines().next().unwrap_or_default().to_owned(),
            (status, code) => {
                let status = status.map(|s| format!("answer {s}")).unwrap_or_default();
                let code = code.map(|c| format!(" {c}")).unwrap_or_default();
                let message = self.message.map(|m| format!(": {m}")).unwrap_or_default();
                format!("{status}{code}{message}").trim().to_owned()
            }
        };
        match words.char_indices().nth(200) {
            Some((end, _)) => format!("{}...", &words[..end]),
            None => words,
        }
    }
}

fn kind_of(error: &io::Error) -> Trouble {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Trouble::Full,
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => Trouble::Denied,
        // Nothing can be there under a name that is too long.
        Some(libc::ENOENT | libc::ENAMETOOLONG) => Trouble::Absent,
        Some(libc::ENOTDIR) => Trouble::NoDirectory,
        // A network file system whose server, or whose process, is gone.
        Some(libc::ENOTCONN | libc::ESTALE | libc::ETIMEDOUT | libc::EHOSTDOWN | libc::EHOSTUNREACH) => {
            Trouble::Unreachable
        }
        None if error.kind() == io::ErrorKind::TimedOut => Trouble::Unreachable,
        _ if limits::of_files(error) => Trouble::Limit(limits::way_out(error, "")),
        _ => Trouble::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_reported_in_its_code_and_its_first_line() {
        let text = "Server returned non-2xx status code: 403 Forbidden: <?xml version='1.0'?><Error>\
            <Code>SignatureDoesNotMatch</Code><Message>The request signature does not match\nmore</Message>\
            <StringToSign>AKIA secret</StringToSign></Error>";
        let answer = Answer::read(text);
        assert_eq!(answer.trouble(), Some(Trouble::NotBelieved));
        assert_eq!(answer.in_words(text), "answer 403 SignatureDoesNotMatch: The request signature does not match");
        let gone = Answer::read("Server returned non-2xx status code: 404 Not Found: <Code>NoSuchBucket</Code>");
        assert_eq!(gone.trouble(), Some(Trouble::NoBucket));
        assert_eq!(Answer::read("Server returned non-2xx status code: 503 x: ").trouble(), Some(Trouble::Unreachable));
        let of = |status: &str, code: &str| {
            let text = format!("Server returned non-2xx status code: {status} x: <Error><Code>{code}</Code></Error>");
            Answer::read(&text).trouble()
        };
        assert_eq!(of("403", "AccessDenied"), Some(Trouble::Denied));
        assert_eq!(of("400", "ExpiredToken"), Some(Trouble::NotBelieved));
        assert_eq!(of("403", "RequestTimeTooSkewed"), Some(Trouble::NotBelieved));
        assert_eq!(of("400", "RequestTimeout"), Some(Trouble::Unreachable));
        assert_eq!(of("401", "AuthenticationRequired"), Some(Trouble::NotBelieved));
        let long = "x".repeat(500);
        assert_eq!(Answer::read(&long).in_words(&long).len(), 203);
    }
}
