//! The proof of a common key, which comes before every other message: each side answers the other's random number.
//!
//! `Open{nonce}` from the member, `Challenge{nonce, mac}` from the leader, `Proof{mac}` from the member. The session key
//! is derived from the key and both numbers, so a frame is valid on one connection only.

use serde::{Deserialize, Serialize};

use super::wire::equal;

/// 32 random bytes, drawn by the caller.
type Nonce = [u8; 32];

/// The member's first message, which is not authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// The version of the protocol.
    pub version: u32,
    /// The member's number.
    pub nonce: Nonce,
}

/// The leader's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// The leader's number.
    pub nonce: Nonce,
    /// Shows that the leader has the key.
    pub mac: [u8; 32],
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
pub struct GangKey([u8; 32]);

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
        GangKey(*hasher.finalize().as_bytes())
    }

    fn mac(&self, purpose: &str, member: &Nonce, leader: &Nonce) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(purpose.as_bytes()).update(&VERSION.to_be_bytes()).update(member).update(leader);
        *hasher.finalize().as_bytes()
    }

    /// The leader's answer to an `Open`.
    pub fn challenge(&self, open: &Open, nonce: Nonce) -> Challenge {
        Challenge { nonce, mac: self.mac("challenge", &open.nonce, &nonce) }
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

    const OPEN: Open = Open { version: VERSION, nonce: [1; 32] };

    #[test]
    fn both_sides_with_one_token_get_one_session_key() {
        let key = GangKey::derive("token", b"secret");
        let challenge = key.challenge(&OPEN, [2; 32]);
        let proof = key.prove(&OPEN, &challenge).expect("the leader has the key");
        assert!(key.accepts(&OPEN, &challenge, &proof));
        assert_ne!(key.session(&OPEN, &challenge), key.session(&OPEN, &key.challenge(&OPEN, [3; 32])));
    }

    #[test]
    fn both_sides_detect_a_wrong_token() {
        let (key, wrong) = (GangKey::derive("token", b"secret"), GangKey::derive("token", b"other"));
        let challenge = key.challenge(&OPEN, [2; 32]);
        assert_eq!(wrong.prove(&OPEN, &challenge), None);
        let forged = wrong.prove(&OPEN, &wrong.challenge(&OPEN, [2; 32])).unwrap();
        assert!(!key.accepts(&OPEN, &challenge, &forged));
    }

    #[test]
    fn the_key_is_not_shown() {
        assert_eq!(format!("{:?}", GangKey::derive("token", b"secret")), "GangKey(secret)");
    }
}
