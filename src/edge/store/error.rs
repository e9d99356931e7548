//! What went wrong with a store, as far as a caller may act on it, in a text without secrets.

use std::error::Error;
use std::io;
use std::time::Duration;

use hyper::StatusCode;
use hyper::http::response::Parts;

use crate::edge::host::limits;

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
    /// An object is there whose name cannot be a key (`a//b`, `../a`, control characters).
    OddName,
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
            Trouble::OddName => "odd_name",
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
    pub(super) says_there_is: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoAnswer(pub(super) String);

/// Nothing proves that it is the store that answers.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NotTrusted(pub(super) String);

/// Why an operation was given up.
pub(super) fn silent(limit: Duration) -> String {
    format!("no byte has moved for {} s", limit.as_secs())
}

/// The same of a directory.
pub(super) fn not_answered(limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("its file system has not answered for {} s", limit.as_secs()))
}

impl Failed {
    pub(super) fn new(trouble: Trouble, detail: String) -> Failed {
        Failed { trouble, detail, says_there_is: false }
    }

    pub(super) fn of_credentials(detail: String) -> Failed {
        Failed::new(Trouble::NoCredentials, detail)
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
        if let object_store::Error::InvalidPath { source } = error {
            return Failed::new(Trouble::OddName, source.to_string().replace(char::is_control, "?"));
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
    code: Option<&'a str>,
    message: Option<&'a str>,
}

impl<'a> Answer<'a> {
    fn read(text: &'a str) -> Answer<'a> {
        let status = text.split_once("status code: ").and_then(|(_, rest)| rest.get(..3)?.parse().ok());
        let element = |name: &str| {
            let (_, rest) = text.split_once(&format!("<{name}>"))?;
            rest.split_once('<').map(|(value, _)| value.lines().next().unwrap_or_default().trim())
        };
        Answer { status, code: element("Code"), message: element("Message").filter(|m| !m.is_empty()) }
    }

    fn trouble(&self) -> Option<Trouble> {
        Some(match (self.code.unwrap_or_default(), self.status) {
            ("NoSuchBucket" | "ContainerNotFound" | "PermanentRedirect" | "AuthorizationHeaderMalformed", _)
            | (_, Some(301 | 307)) => Trouble::NoBucket,
            // Two creations met: neither need have been done.
            ("ConditionalRequestConflict" | "OperationAborted", _) => Trouble::Unreachable,
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
        let of = |status: &str, code: &str, more: &str| {
            let text =
                format!("Server returned non-2xx status code: {status} x: <Error><Code>{code}</Code>{more}</Error>");
            (Answer::read(&text).trouble(), Answer::read(&text).in_words(&text))
        };
        let more = "<Message>The signatures differ\nmore</Message><StringToSign>AKIA secret</StringToSign>";
        let words = "answer 403 SignatureDoesNotMatch: The signatures differ".to_owned();
        assert_eq!(of("403", "SignatureDoesNotMatch", more), (Some(Trouble::NotBelieved), words));
        assert_eq!(of("404", "NoSuchBucket", "").0, Some(Trouble::NoBucket));
        assert_eq!(of("503", "", "").0, Some(Trouble::Unreachable));
        assert_eq!(of("403", "AccessDenied", "").0, Some(Trouble::Denied));
        let long = "x".repeat(500);
        assert_eq!(Answer::read(&long).in_words(&long).len(), 203);
    }
}
