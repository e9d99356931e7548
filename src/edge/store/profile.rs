//! The files that AWS's tools share: `~/.aws/credentials` and `~/.aws/config`, one section a profile.
//! <https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html>
//!
//! Keys and a region are read; what would need a second request (roles, SSO, processes) is not.

use std::collections::BTreeMap;

use super::access::Access;

/// What a profile says.
#[derive(Default)]
pub(super) struct Profile {
    /// Access key id and secret.
    pub(super) keys: Option<(String, String)>,
    pub(super) token: Option<String>,
    pub(super) region: Option<String>,
}

/// The profile of `AWS_PROFILE`, or the default one; `None` where no file has it. Errors: one that was named is nowhere.
pub(super) fn read(access: &Access) -> Result<Option<Profile>, String> {
    let named = access.given("AWS_PROFILE");
    let name = named.unwrap_or("default");
    let path = |variable: &str, file: &str| {
        let at_home = || access.given("HOME").map_or(String::new(), |home| format!("{home}/.aws/{file}"));
        access.given(variable).map_or_else(at_home, str::to_owned)
    };
    let files = [path("AWS_SHARED_CREDENTIALS_FILE", "credentials"), path("AWS_CONFIG_FILE", "config")];
    let texts = files.each_ref().map(|file| std::fs::read_to_string(file).unwrap_or_default());
    // The credentials' file wins over the configuration's, where sections have a prefix.
    let mut found = section(&texts[1], &format!("profile {name}"));
    if name == "default" {
        found.extend(section(&texts[1], name));
    }
    found.extend(section(&texts[0], name));
    if found.is_empty() {
        return match named {
            Some(name) => Err(format!("AWS_PROFILE={name} is in neither {} nor {}", files[0], files[1])),
            None => Ok(None),
        };
    }
    let mut take = |key: &str| found.remove(key).filter(|v| !v.is_empty());
    Ok(Some(Profile {
        keys: take("aws_access_key_id").zip(take("aws_secret_access_key")),
        token: take("aws_session_token"),
        region: take("region"),
    }))
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
    use crate::rules::env::Env;

    #[test]
    fn a_profile_is_the_sum_of_both_files() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let aws = dir.path().join(".aws");
        std::fs::create_dir(&aws).expect("makes");
        let credentials = "[default]\naws_access_key_id=D\naws_secret_access_key = d\n[ci]\naws_access_key_id = K\n\
            aws_secret_access_key = a=b/+\naws_session_token=t\n";
        std::fs::write(aws.join("credentials"), credentials).expect("writes");
        let config = "# comment\n[default]\nregion = eu-west-1\n[profile ci]\nregion=us-west-2\ns3 =\n  region = no\n";
        std::fs::write(aws.join("config"), config).expect("writes");
        let home = dir.path().to_str().expect("UTF-8");
        let read = |pairs: &[(&str, &str)]| {
            super::read(&Access::new(Env::from_pairs([&[("HOME", home)], pairs].concat()), false))
        };
        let found = read(&[]).expect("reads").expect("there");
        assert_eq!((found.keys, found.region), (Some(("D".into(), "d".into())), Some("eu-west-1".into())));
        let found = read(&[("AWS_PROFILE", "ci")]).expect("reads").expect("there");
        assert_eq!(found.keys, Some(("K".into(), "a=b/+".into())));
        assert_eq!((found.token, found.region), (Some("t".into()), Some("us-west-2".into())));
        assert!(read(&[("AWS_PROFILE", "absent")]).is_err_and(|why| why.contains("AWS_PROFILE=absent")));
        assert!(read(&[("HOME", "/nonexistent")]).is_ok());
    }
}
