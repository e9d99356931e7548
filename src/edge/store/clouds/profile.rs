//! The files that AWS's tools share: `~/.aws/credentials` and `~/.aws/config`, one section a profile.
//! <https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html>
//!
//! Keys and a region are read; what would need a second request (roles, SSO, processes) is not.

use std::collections::BTreeMap;

use crate::edge::fs::trusted_open;
use crate::edge::store::clouds::access::Access;
use crate::edge::store::clouds::values;
use crate::edge::store::error::Failed;

#[derive(Default)]
pub(super) struct Profile {
    /// Access key id and secret.
    pub(super) keys: Option<(String, String)>,
    pub(super) token: Option<String>,
    pub(super) region: Option<String>,
}

/// Settings for credentials of a kind that is not supported here.
const OTHER_WAYS: [&str; 7] = [
    "role_arn",
    "sso_session",
    "sso_start_url",
    "sso_account_id",
    "credential_process",
    "web_identity_token_file",
    "login_session",
];
const WAY_OUT: &str =
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or take AWS_PROFILE away where the machine's role is to sign";

/// The profile of `AWS_PROFILE`, or the default one. Errors: one that was named is nowhere; a value that the crate would panic
/// at; where `signs`, a file that may not be read, or a named profile without keys, as other credentials are not its own.
pub(super) fn read(access: &Access, signs: bool) -> Result<Profile, Failed> {
    let named = access.given("AWS_PROFILE");
    let name = named.unwrap_or("default");
    let path = |variable: &str, file: &str| {
        let at_home = || access.given("HOME").map_or(String::new(), |home| format!("{home}/.aws/{file}"));
        access.given(variable).map_or_else(at_home, str::to_owned)
    };
    let files = [path("AWS_SHARED_CREDENTIALS_FILE", "credentials"), path("AWS_CONFIG_FILE", "config")];
    let read = files.each_ref().map(|file| values::file(file));
    for (file, read) in files.iter().zip(&read).filter(|_| signs) {
        if let Some(error) = read.as_ref().err().filter(|error| trusted_open::is_refused(error)) {
            return Err(Failed::of_credentials(format!("{file} cannot be used: {error}")));
        }
    }
    let [credentials, config] = read.map(Result::unwrap_or_default);
    // The credentials' file wins over the configuration's, where sections have a prefix.
    let mut found = section(&config, &format!("profile {name}"));
    if name == "default" {
        found.extend(section(&config, name));
    }
    found.extend(section(&credentials, name));
    if let (true, Some(name)) = (found.is_empty(), named) {
        let [credentials, config] = files;
        return Err(Failed::of_credentials(format!("AWS_PROFILE={name} is in neither {credentials} nor {config}")));
    }
    let mut take = |key: &str| found.remove(key).filter(|v| !v.is_empty());
    let (id, secret) = (take("aws_access_key_id"), take("aws_secret_access_key"));
    let lacks = match (&id, &secret) {
        (Some(_), Some(_)) => None,
        (Some(_), None) => Some("has no aws_secret_access_key".to_owned()),
        (None, Some(_)) => Some("has no aws_access_key_id".to_owned()),
        (None, None) => {
            let way = OTHER_WAYS.into_iter().find(|way| take(way).is_some());
            way.map(|way| format!("gives {way}, and trainit reads keys only"))
        }
    };
    if let (true, Some(name), Some(lacks)) = (signs, named, lacks) {
        return Err(Failed::of_credentials(format!("AWS_PROFILE={name} {lacks}; {WAY_OUT}")));
    }
    let profile = Profile { keys: id.zip(secret), token: take("aws_session_token"), region: take("region") };
    let keys = profile.keys.iter().flat_map(|(id, secret)| [id, secret]);
    keys.chain(&profile.token).try_for_each(|text| values::text("a key in the AWS profile", text))?;
    profile.region.iter().try_for_each(|region| values::label("the AWS profile's region", region))?;
    Ok(profile)
}

/// The settings of one section; nested ones, which are indented, are left out.
fn section(text: &str, wanted: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut is_ours = false;
    for line in text.lines().filter(|l| !l.trim_start().starts_with(['#', ';'])) {
        if let Some(name) = line.trim().strip_prefix('[').and_then(|l| l.split(']').next()) {
            is_ours = name.split_whitespace().eq(wanted.split_whitespace());
        } else if let (true, Some((key, value))) = (is_ours && !line.starts_with([' ', '\t']), line.split_once('=')) {
            found.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::store::clouds::access::TIMEOUT;
    use crate::rules::process::env::Env;

    #[test]
    fn a_profile_is_the_sum_of_both_files() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let aws = dir.path().join(".aws");
        std::fs::create_dir(&aws).expect("makes");
        let credentials = "[default]\naws_access_key_id=D\naws_secret_access_key = d\n[ci]\naws_access_key_id = K\n\
            aws_secret_access_key = a=b/+\naws_session_token=t\n[half]\naws_access_key_id = K\n";
        std::fs::write(aws.join("credentials"), credentials).expect("writes");
        let config = "# comment\n[default]\nregion = eu-west-1\n[profile ci]\nregion=us-west-2\ns3 =\n  region = no\n\
            [profile sso]\nsso_session = s\n[profile place]\nregion = r\n";
        std::fs::write(aws.join("config"), config).expect("writes");
        let home = dir.path().to_str().expect("UTF-8");
        let read = |pairs: &[(&str, &str)]| {
            let env = Env::from_pairs([&[("HOME", home)], pairs].concat());
            super::read(&Access::new(env, false, TIMEOUT), true).map_err(|failed| failed.detail)
        };
        let found = read(&[]).expect("reads");
        assert_eq!((found.keys, found.region), (Some(("D".into(), "d".into())), Some("eu-west-1".into())));
        let found = read(&[("AWS_PROFILE", "ci")]).expect("reads");
        assert_eq!(found.keys, Some(("K".into(), "a=b/+".into())));
        assert_eq!((found.token, found.region), (Some("t".into()), Some("us-west-2".into())));
        assert!(read(&[("AWS_PROFILE", "place")]).is_ok() && read(&[("HOME", "/nonexistent")]).is_ok());
        for (name, word) in [("sso", "sso_session"), ("half", "aws_secret_access_key"), ("absent", "is in neither")] {
            let why = read(&[("AWS_PROFILE", name)]).err().expect("says why");
            assert!(why.starts_with(&format!("AWS_PROFILE={name} ")) && why.contains(word), "{why}");
        }
    }

    #[test]
    fn a_credentials_file_behind_a_link_of_another_user_is_refused() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("temporary directory");
        let (file, link) = (dir.path().join("keys"), dir.path().join("link"));
        std::fs::write(&file, "[default]\naws_access_key_id=D\naws_secret_access_key=d\n").expect("writes");
        std::os::unix::fs::symlink(&file, &link).expect("symlink");
        let of_link = || {
            let pairs = [("AWS_SHARED_CREDENTIALS_FILE", link.to_str().expect("UTF-8"))];
            read(&Access::new(Env::from_pairs(pairs), false, TIMEOUT), true).map_err(|failed| failed.detail)
        };
        assert!(of_link().is_ok_and(|profile| profile.keys.is_some()), "a link of our own");
        std::os::unix::fs::lchown(&link, Some(65534), None).expect("lchown");
        assert!(of_link().is_err_and(|why| why.contains("symbolic link of user 65534")));
    }
}
