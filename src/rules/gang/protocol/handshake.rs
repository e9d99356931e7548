//! The proof of a common key, which comes before every other message: each side answers the other's random number.
//!
//! `Open{nonce}` from the member, `Challenge{nonce, mac}` from the leader, `Proof{mac}` from the member. The session key
//! is derived from the key and both numbers, so a frame is valid on one connection only.

use serde::{Deserialize, Serialize};

use super::message::bounded_text;
use super::wire::equal;

/// 32 random bytes, drawn by the caller.
type Nonce = [u8; 32];

/// What an agent says about itself before the key is proven. It is used only in log lines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// The version of trainit.
    pub trainit: String,
    /// The origin of its key, as a clause; empty: unknown.
    pub key: String,
    /// The number of required seats; 0: unknown.
    pub nodes: usize,
}

/// The member's first message, which is not authenticated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// The version of the protocol.
    pub version: u32,
    /// The member's number.
    pub nonce: Nonce,
    /// The member.
    #[serde(default)]
    pub about: About,
}

/// The leader's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// The leader's number.
    pub nonce: Nonce,
    /// Shows that the leader has the key.
    pub mac: [u8; 32],
    /// The leader.
    #[serde(default)]
    pub about: About,
}

/// The leader's answer to an `Open` of another version of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherVersion {
    /// The leader's version of the protocol.
    pub version: u32,
    /// The leader.
    #[serde(default)]
    pub about: About,
}

/// Both answers of a leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Answer {
    /// To a member of this version.
    Challenge(Challenge),
    /// To a member of another version.
    OtherVersion(OtherVersion),
}

impl About {
    /// Why the other agent's key may differ from this agent's, as a clause with both values; empty: unknown.
    pub fn other_key(&self, other: &About) -> String {
        let key = bounded_text(&other.key);
        if !key.is_empty() && key != self.key {
            return format!(": its key is {key}, and this replica's is {}", self.key);
        }
        if other.nodes > 0 && other.nodes != self.nodes {
            return format!(": it counts {} nodes, and this replica {}", other.nodes, self.nodes);
        }
        String::new()
    }

    /// That the other agent speaks another version of the protocol, as a clause.
    pub fn other_version(&self, version: u32, other: &About) -> String {
        let trainit = match bounded_text(&other.trainit) {
            unknown if unknown.is_empty() => String::new(),
            known => format!(" (trainit {known})"),
        };
        format!(
            "it speaks version {version} of the gang's protocol{trainit}, and this replica version {VERSION} (trainit {}): \
             give all replicas the same image",
            self.trainit
        )
    }
}

/// The member's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// Shows that the member has the key.
    pub mac: [u8; 32],
}

/// The version of the protocol.
pub const VERSION: u32 = 1;

/// The key that all agents of a job share.
#[derive(Clone)]
pub struct GangKey {
    secret: [u8; 32],
    /// What this agent says about itself.
    pub about: About,
}

impl std::fmt::Debug for GangKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GangKey(secret)")
    }
}

impl GangKey {
    /// From a token, the key in the store, or the description of the cluster. `kind` makes keys of different origins differ.
    pub fn derive(kind: &str, secret: &[u8]) -> GangKey {
        let mut hasher = blake3::Hasher::new_derive_key("trainit gang key v1");
        hasher.update(&(kind.len() as u64).to_be_bytes()).update(kind.as_bytes()).update(secret);
        let key = match kind {
            "token" => "a token",
            "store" => "in the checkpoint store",
            _ => "derived from the cluster's description",
        };
        let about = About { key: key.to_owned(), ..About::default() };
        GangKey { secret: *hasher.finalize().as_bytes(), about }
    }

    /// The member's first message.
    pub fn open(&self, nonce: Nonce) -> Open {
        Open { version: VERSION, nonce, about: self.about.clone() }
    }

    fn mac(&self, purpose: &str, member: &Nonce, leader: &Nonce) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(purpose.as_bytes()).update(&VERSION.to_be_bytes()).update(member).update(leader);
        *hasher.finalize().as_bytes()
    }

    /// The leader's answer to an `Open`.
    pub fn challenge(&self, open: &Open, nonce: Nonce) -> Challenge {
        Challenge { nonce, mac: self.mac("challenge", &open.nonce, &nonce), about: self.about.clone() }
    }

    /// The member's answer; `None`: the leader does not have the key.
    pub fn prove(&self, open: &Open, challenge: &Challenge) -> Option<Proof> {
        let expected = self.mac("challenge", &open.nonce, &challenge.nonce);
        equal(&expected, &challenge.mac).then(|| Proof { mac: self.mac("proof", &open.nonce, &challenge.nonce) })
    }

    /// Whether the member's proof is valid.
    pub fn accepts(&self, open: &Open, challenge: &Challenge, proof: &Proof) -> bool {
        equal(&self.mac("proof", &open.nonce, &challenge.nonce), &proof.mac)
    }

    /// The session key of a proven connection.
    pub fn session(&self, open: &Open, challenge: &Challenge) -> [u8; 32] {
        self.mac("session", &open.nonce, &challenge.nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Open {
        Open { version: VERSION, nonce: [1; 32], about: About::default() }
    }

    #[test]
    fn both_sides_with_one_token_get_one_session_key() {
        let key = GangKey::derive("token", b"secret");
        let challenge = key.challenge(&open(), [2; 32]);
        let proof = key.prove(&open(), &challenge).expect("the leader has the key");
        assert!(key.accepts(&open(), &challenge, &proof));
        assert_ne!(key.session(&open(), &challenge), key.session(&open(), &key.challenge(&open(), [3; 32])));
    }

    #[test]
    fn both_sides_detect_a_wrong_token() {
        let (key, wrong) = (GangKey::derive("token", b"secret"), GangKey::derive("token", b"other"));
        let challenge = key.challenge(&open(), [2; 32]);
        assert_eq!(wrong.prove(&open(), &challenge), None);
        let forged = wrong.prove(&open(), &wrong.challenge(&open(), [2; 32])).unwrap();
        assert!(!key.accepts(&open(), &challenge, &forged));
    }

    #[test]
    fn the_messages_of_the_first_version_are_read_and_read_by_it() {
        let number = vec![7u8; 32];
        let first = serde_json::json!({"version": 1, "nonce": number});
        let open: Open = serde_json::from_value(first).unwrap();
        assert_eq!(open.about, About::default());
        let challenge = serde_json::json!({"nonce": number, "mac": number});
        assert!(matches!(serde_json::from_value(challenge), Ok(Answer::Challenge(_))));
        let other = OtherVersion { version: 2, about: About::default() };
        let json = serde_json::to_value(&other).unwrap();
        assert_eq!(serde_json::from_value::<Answer>(json).unwrap(), Answer::OtherVersion(other));
    }

    #[test]
    fn another_key_is_explained_with_both_origins_or_both_numbers_of_nodes() {
        let about = |key: &str, nodes| About { trainit: "1".to_owned(), key: key.to_owned(), nodes };
        let own = about("in the store", 2);
        assert_eq!(own.other_key(&about("a token", 2)), ": its key is a token, and this replica's is in the store");
        assert_eq!(own.other_key(&about("in the store", 3)), ": it counts 3 nodes, and this replica 2");
        assert_eq!(own.other_key(&About::default()), "");
        let version = own.other_version(2, &about("", 0));
        assert!(
            version.starts_with("it speaks version 2 of the gang's protocol (trainit 1), and this replica version 1")
        );
    }

    #[test]
    fn the_key_is_not_shown() {
        assert_eq!(format!("{:?}", GangKey::derive("token", b"secret")), "GangKey(secret)");
    }
}
