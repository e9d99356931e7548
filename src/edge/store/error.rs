//! Errors of a store: a kind for the caller, and a text without secrets.

use std::error::Error;
use std::io;
use std::time::Duration;

use hyper::StatusCode;
use hyper::http::response::Parts;

use crate::edge::host::limits;

/// The kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The object does not exist.
    Absent,
    /// No space or quota left.
    Full,
    /// Writing or reading is not permitted: permissions, or a read-only file system.
    Denied,
    /// There is no such bucket, or it is in another region.
    NoBucket,
    /// What should be a directory is a file.
    NoDirectory,
    /// There are no credentials.
    NoCredentials,
    /// The credentials are not valid, or no longer valid.
    InvalidCredentials,
    /// The same, but the credentials may be renewed soon.
    StaleCredentials,
    /// An object has a name that cannot be a key (`a//b`, `../a`, control characters).
    OddName,
    /// The store does not support the request.
    Unsupported,
    /// No response, or the response is "later".
    Unreachable,
    /// This process or machine has reached a limit of its own; what to do about it.
    Limit(&'static str),
    /// Anything else.
    Other,
}

impl Trouble {
    /// The label of counters.
    pub fn word(self) -> &'static str {
        match self {
            Trouble::Absent => "absent",
            Trouble::Full => "full",
            Trouble::Denied => "denied",
            Trouble::NoBucket => "no_bucket",
            Trouble::NoDirectory => "no_directory",
            Trouble::NoCredentials => "no_credentials",
            Trouble::InvalidCredentials | Trouble::StaleCredentials => "not_believed",
            Trouble::OddName => "odd_name",
            Trouble::Unsupported => "unsupported",
            Trouble::Unreachable => "unreachable",
            Trouble::Limit(_) => "limit",
            Trouble::Other => "other",
        }
    }

    /// Whether a later try may succeed.
    pub fn may_pass(self) -> bool {
        matches!(self, Trouble::Unreachable | Trouble::StaleCredentials)
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

    /// Whether the error concerns one object. A damaged response may look the same, so the caller asks once more.
    pub fn is_doubtful(&self) -> bool {
        matches!(
            self.trouble,
            Trouble::Absent | Trouble::Unsupported | Trouble::NoDirectory | Trouble::Limit(_) | Trouble::Other
        )
    }
}

/// A failure without its action and its place.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) trouble: Trouble,
    pub(super) detail: String,
    pub(super) says_exists: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoAnswer(pub(super) String);

/// The server's identity is not proven.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NotTrusted(pub(super) String);

pub(super) fn silent(limit: Duration) -> String {
    format!("no byte has moved for {} s", limit.as_secs())
}

pub(super) fn not_answered(limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("its file system has not answered for {} s", limit.as_secs()))
}

impl Failed {
    pub(super) fn new(trouble: Trouble, detail: String) -> Failed {
        Failed { trouble, detail, says_exists: false }
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
        let says_exists = error.kind() == io::ErrorKind::AlreadyExists;
        Failed { trouble: kind_of(error), detail: error.to_string(), says_exists }
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
        let says_exists = matches!(error, object_store::Error::AlreadyExists { .. });
        Failed { trouble, detail: answer.one_line(&text), says_exists }
    }
}

/// The proper status of AWS errors with 400 that are worth a retry: a slow body, an overloaded token service. The crate
/// retries by the status.
pub(super) fn transient_status(words: &str) -> Option<StatusCode> {
    match Answer::read(words).code? {
        "RequestTimeout" => Some(StatusCode::REQUEST_TIMEOUT),
        "Throttling" | "ThrottlingException" | "RequestLimitExceeded" | "IDPCommunicationError" => {
            Some(StatusCode::TOO_MANY_REQUESTS)
        }
        _ => None,
    }
}

/// The body of a refusal for S3's redirect to another region, of which the crate reports only that it is a redirect.
pub(super) fn redirect_message(head: &Parts) -> Option<String> {
    let region = head.headers.get("x-amz-bucket-region").filter(|_| head.status.is_redirection())?.to_str().ok()?;
    Some(format!(
        "<Code>PermanentRedirect</Code><Message>the bucket is in the region {region}: set AWS_REGION={region}</Message>"
    ))
}

pub(super) fn one_line(body: &str) -> String {
    Answer::read(body).one_line(body)
}

/// A store's refusal. The crate returns the status and the body in one text:
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
            // Two creations collided; both may have failed.
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
            ) => Trouble::InvalidCredentials,
            ("QuotaExceeded" | "InsufficientStorage", _) | (_, Some(507)) => Trouble::Full,
            // Cloud Storage: the token has expired.
            (_, Some(401)) => Trouble::InvalidCredentials,
            (_, Some(403)) => Trouble::Denied,
            ("NotImplemented", _) | (_, Some(405)) => Trouble::Unsupported,
            (_, Some(408 | 429 | 500..=599)) => Trouble::Unreachable,
            _ => return None,
        })
    }

    /// One short line, because a whole body contains the signed text.
    fn one_line(&self, text: &str) -> String {
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
        // Nothing can exist under a name that is too long.
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
            (Answer::read(&text).trouble(), Answer::read(&text).one_line(&text))
        };
        let more = "<Message>The signatures differ\nmore</Message><StringToSign>AKIA secret</StringToSign>";
        let words = "answer 403 SignatureDoesNotMatch: The signatures differ".to_owned();
        assert_eq!(of("403", "SignatureDoesNotMatch", more), (Some(Trouble::InvalidCredentials), words));
        assert_eq!(of("404", "NoSuchBucket", "").0, Some(Trouble::NoBucket));
        assert_eq!(of("503", "", "").0, Some(Trouble::Unreachable));
        assert_eq!(of("403", "AccessDenied", "").0, Some(Trouble::Denied));
        let long = "x".repeat(500);
        assert_eq!(Answer::read(&long).one_line(&long).len(), 203);
    }
}
