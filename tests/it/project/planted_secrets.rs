//! No output shows a secret that stands in the wrong place: a password in a URL, the JSON of a service account or a token where
//! a path belongs. A secret is planted in every setting of the list and in every variable that is known to hold a place.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use trainit::settings::defs::{all, on};

use crate::support::Trainit;

const SECRET: &str = "S3CR3Tplanted";

/// The places where it is planted.
fn plants() -> [String; 3] {
    [
        format!("https://user:{SECRET}@host.invalid/x"),
        format!("{{\"type\": \"service_account\", \"private_key\": \"{SECRET}\"}}"),
        format!("https://host.invalid/x?sig={SECRET}"),
    ]
}

/// Variables that hold a place or an address.
const VARIABLES: [&str; 17] = [
    "TRAINIT_CONFIG",
    "TRAINIT_NVML_LIBRARY",
    "TRAINIT_GPU_PROBE",
    "TRAINIT_AZURE_METADATA_ENDPOINT",
    "TRAINIT_TRACKING_ID",
    "TRAINIT_STOP_GRACEE",
    "TMPDIR",
    "CLOUD_ML_HP_METRIC_FILE",
    "CLOUD_ML_TRIAL_ID",
    "AIP_MODEL_DIR",
    "AIP_CHECKPOINT_DIR",
    "TF_CONFIG",
    "GCE_METADATA_HOST",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "HTTPS_PROXY",
    "MLFLOW_TRACKING_URI",
    "CUDA_VISIBLE_DEVICES",
];

/// The outputs that show the secret: of a run with its verdict and its page, and of the commands that print settings.
fn leaks(variables: &[(&str, &str)]) -> Vec<String> {
    let place = tempfile::tempdir().unwrap();
    let commands: [&[&str]; 4] = [&["run", "--", "true"], &["inspect"], &["env"], &["checkpoint", "list"]];
    let mut leaks = Vec::new();
    for command in commands {
        let trainit = Trainit::new(command).dir(place.path());
        let trainit = trainit.env("TRAINIT_VERDICT_FILE", "verdict").env("TRAINIT_RUN_REPORT", "report.html");
        let trainit = trainit.env("TRAINIT_PREEMPTION", "off").env("TRAINIT_STORE_TIMEOUT", "1s");
        let done = variables.iter().fold(trainit, |trainit, (name, value)| trainit.env(name, value)).output();
        let file = |name: &str| fs::read_to_string(place.path().join(name)).unwrap_or_default();
        let outputs = [
            ("stdout", done.out()),
            ("stderr", done.err()),
            ("verdict", file("verdict")),
            ("report", file("report.html")),
        ];
        for (output, text) in outputs {
            if let Some(line) = text.lines().find(|line| line.contains(SECRET)) {
                leaks.push(format!("{variables:?}: {} shows in {output}: {line}", command[0]));
            }
        }
    }
    leaks
}

/// Each of these environments alone, several at once.
#[track_caller]
fn assert_no_leaks(environments: Vec<Vec<(String, String)>>) {
    let (left, found) = (Mutex::new(environments), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(environment) = { left.lock().unwrap().pop() } {
                    let variables: Vec<_> = environment.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
                    found.lock().unwrap().extend(leaks(&variables));
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn no_setting_shows_a_secret() {
    let variables: Vec<String> = all().filter_map(|setting| setting.variable()).collect();
    assert!(variables.len() > 80, "{}", variables.len());
    let [password, json, query] = plants();
    let alone = variables.iter().map(|name| vec![(name.clone(), password.clone())]);
    // Every mistake is reported at once.
    let together = [json, query].map(|value| variables.iter().map(|name| (name.clone(), value.clone())).collect());
    assert_no_leaks(alone.chain(together).collect());
}

#[test]
fn no_path_setting_shows_a_token() {
    let is_path = |form: &str| ["DIR", "FILE", "PATH", "FILE.html"].contains(&form);
    let paths = all().filter(|setting| setting.on & (on::RUN | on::INSPECT) != 0);
    let paths = paths.filter(|setting| match setting.takes {
        trainit::settings::defs::Takes::One(form) => is_path(form),
        _ => false,
    });
    let variables: Vec<String> = paths.filter_map(|setting| setting.variable()).collect();
    assert!(variables.len() > 6, "{variables:?}");
    assert_no_leaks(variables.into_iter().map(|name| vec![(name, SECRET.to_owned())]).collect());
}

#[test]
fn no_variable_shows_a_secret() {
    let environments = plants().map(|plant| VARIABLES.map(|name| vec![(name.to_owned(), plant.clone())]));
    assert_no_leaks(environments.into_iter().flatten().collect());
}

#[test]
fn no_credential_in_the_variable_of_its_file_is_shown() {
    let [_, json, _] = plants();
    let store = [("TRAINIT_CHECKPOINT_STORE", "gs://bucket/job"), ("TRAINIT_CHECKPOINT_DIR", "checkpoints")];
    let store = store.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let files = ["GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"];
    let with = |name: &str| store.iter().cloned().chain([(name.to_owned(), json.clone())]).collect();
    assert_no_leaks(files.into_iter().map(with).collect());
}

#[test]
fn a_token_instead_of_its_file_is_named_by_its_length() {
    let gang =
        ["run", "--gang", "on", "--nnodes", "2", "--node-rank", "0", "--leader", "127.0.0.1:21999", "--", "true"];
    let done = Trainit::new(gang).dir(Path::new("/")).env("TRAINIT_GANG_TOKEN_FILE", SECRET).output().expect_code(125);
    assert!(!done.err().contains(SECRET) && done.err().contains("a text of 13 characters"), "{}", done.err());
}
