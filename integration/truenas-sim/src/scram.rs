//! The server's side of SCRAM-SHA-512, which 26 offers for API keys (RFC 5802, RFC 7677).

use aws_lc_rs::{constant_time, digest, hmac, pbkdf2};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::random;

/// The stored form of a key.
#[derive(Clone)]
pub(crate) struct Secret {
    key_id: i64,
    salt: Vec<u8>,
    stored_key: Vec<u8>,
    server_key: Vec<u8>,
}

const ITERATIONS: u32 = 500_000;
/// Bytes of a client's nonce, and of what the server adds.
const NONCE: usize = 32;

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret")
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

impl Secret {
    pub(crate) fn new(key_id: i64, secret: &str) -> Self {
        let salt = random::bytes(16);
        let mut salted = [0; 64];
        let iterations = std::num::NonZeroU32::new(ITERATIONS).expect("not zero");
        pbkdf2::derive(
            pbkdf2::PBKDF2_HMAC_SHA512,
            iterations,
            &salt,
            secret.as_bytes(),
            &mut salted,
        );
        let client_key = sign(&salted, b"Client Key");
        Self {
            key_id,
            salt,
            stored_key: digest::digest(&digest::SHA512, &client_key)
                .as_ref()
                .to_vec(),
            server_key: sign(&salted, b"Server Key"),
        }
    }
}

/// A login between its first and its last message.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) user: String,
    pub(crate) key_id: i64,
    secret: Option<Secret>,
    channel: Channel,
    nonce: String,
    first_messages: String,
}

/// User and key of the first message, and the rest of it.
pub(crate) struct First {
    pub(crate) user: String,
    pub(crate) key_id: i64,
    channel: Channel,
    bare: String,
    nonce: Vec<u8>,
}

/// The statement of a client about the TLS channel below the exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Channel {
    /// Nothing: `n`.
    Free,
    /// It is the one to the server with this certificate: `p=tls-server-end-point`.
    EndPoint,
}

impl Channel {
    fn header(self) -> &'static str {
        match self {
            Self::Free => "n,,",
            Self::EndPoint => "p=tls-server-end-point,,",
        }
    }
}

impl First {
    /// A nonce is 32 bytes. `y` would say that the server knows no channel binding; 26 does.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let channel = [Channel::Free, Channel::EndPoint]
            .into_iter()
            .find(|channel| text.starts_with(channel.header()))?;
        let bare = &text[channel.header().len()..];
        let (name, nonce) = bare.split_once(",r=")?;
        let (user, key_id) = name.strip_prefix("n=")?.rsplit_once(':')?;
        let nonce = STANDARD.decode(nonce).ok();
        Some(Self {
            user: user.to_owned(),
            key_id: key_id.parse().ok()?,
            channel,
            bare: bare.to_owned(),
            nonce: nonce.filter(|nonce| nonce.len() == NONCE)?,
        })
    }

    /// Whether the client binds the exchange to its TLS channel.
    pub(crate) fn is_bound(&self) -> bool {
        self.channel == Channel::EndPoint
    }
}

impl Exchange {
    /// Answers the first message. Without a secret the exchange goes on and fails at its end, so that
    /// a client does not learn which keys exist.
    pub(crate) fn start(first: First, secret: Option<Secret>) -> (Self, String) {
        // The bytes are joined, and encoded once: the text does not start with the client's.
        let nonce = [first.nonce, random::bytes(NONCE)].concat();
        let nonce = STANDARD.encode(nonce);
        let salt = secret
            .as_ref()
            .map_or_else(|| random::bytes(16), |secret| secret.salt.clone());
        let answer = format!("r={nonce},s={},i={ITERATIONS}", STANDARD.encode(salt));
        let exchange = Self {
            first_messages: format!("{},{answer}", first.bare),
            user: first.user,
            key_id: first.key_id,
            secret,
            channel: first.channel,
            nonce,
        };
        (exchange, answer)
    }

    /// Checks the proof, and the certificate that the client has seen, and answers with the server's
    /// signature. `end_point` is the binding of the server's certificate.
    pub(crate) fn finish(self, text: &str, end_point: &[u8]) -> Option<String> {
        let secret = self.secret?;
        let (without_proof, proof) = text.rsplit_once(",p=")?;
        let (channel, nonce) = without_proof.strip_prefix("c=")?.split_once(",r=")?;
        let channel = STANDARD.decode(channel).ok()?;
        let mut expected = self.channel.header().as_bytes().to_vec();
        if self.channel == Channel::EndPoint {
            expected.extend_from_slice(end_point);
        }
        if nonce != self.nonce || channel != expected {
            return None;
        }
        let message = format!("{},{without_proof}", self.first_messages);
        let signature = sign(&secret.stored_key, message.as_bytes());
        let proof = STANDARD
            .decode(proof)
            .ok()
            .filter(|proof| proof.len() == signature.len())?;
        let client_key: Vec<u8> = proof
            .iter()
            .zip(&signature)
            .map(|(left, right)| left ^ right)
            .collect();
        let stored = digest::digest(&digest::SHA512, &client_key);
        constant_time::verify_slices_are_equal(stored.as_ref(), &secret.stored_key).ok()?;
        Some(format!(
            "v={}",
            STANDARD.encode(sign(&secret.server_key, message.as_bytes()))
        ))
    }
}

/// `tls-server-end-point` (RFC 5929) of a certificate that is signed with SHA-256, as the simulator's is.
pub(crate) fn end_point(certificate: &[u8]) -> Vec<u8> {
    digest::digest(&digest::SHA256, certificate)
        .as_ref()
        .to_vec()
}

fn sign(key: &[u8], message: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA512, key), message)
        .as_ref()
        .to_vec()
}
