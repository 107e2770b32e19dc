//! SCRAM-SHA-512 with an API key (RFC 5802 as TrueNAS 26 speaks it): the key itself is never sent,
//! and the NAS proves that it knows the key as well.

use std::num::NonZeroU32;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA512, digest};
use aws_lc_rs::{hmac, pbkdf2};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret, SecretString};

/// The iterations that are accepted: fewer would let a false NAS guess the key, more would keep a
/// core busy for minutes.
const ITERATIONS: std::ops::RangeInclusive<u32> = 50_000..=5_000_000;
/// No channel binding: TrueNAS 26 knows it and does not demand it. The check of the certificate by TLS alone ties a
/// login to the NAS at the other end.
const HEADER: &str = "n,,";
const LENGTH: usize = 64;
/// The number of random bytes that each side gives. The nonce of the NAS is both, encoded as one: its text does not
/// begin with the text of ours.
const NONCE: usize = 32;

/// The first half of an exchange.
pub(crate) struct ClientFirst {
    bare: String,
    nonce: [u8; NONCE],
    secret: Zeroizing<String>,
}

/// The second half: what the NAS must answer.
pub(crate) struct ServerProof([u8; LENGTH]);

/// Why an exchange cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ScramError {
    #[error("the API key has not the form <number>-<secret>")]
    Key,
    #[error("the user name has a character that SCRAM does not carry")]
    UserName,
    #[error("no random numbers are available")]
    Random,
    #[error("the NAS sent a message that SCRAM does not know")]
    Message,
    #[error("the NAS answered another exchange than ours")]
    Nonce,
    #[error("the NAS asks for a number of iterations that is not safe")]
    Iterations,
    #[error("the NAS does not know the API key: it may not be the NAS it claims to be")]
    Proof,
}

impl ClientFirst {
    /// Begins an exchange.
    pub(crate) fn new(username: &str, key: &SecretString) -> Result<Self, ScramError> {
        let mut nonce = [0_u8; NONCE];
        aws_lc_rs::rand::fill(&mut nonce).map_err(|_| ScramError::Random)?;
        Self::with_nonce(username, key, nonce)
    }

    fn with_nonce(
        username: &str,
        key: &SecretString,
        nonce: [u8; NONCE],
    ) -> Result<Self, ScramError> {
        // SASLprep leaves these as they are; a TrueNAS user name has no others.
        let plain = |c: char| c.is_ascii_graphic() && !matches!(c, ',' | '=' | ':');
        if username.is_empty() || !username.chars().all(plain) {
            return Err(ScramError::UserName);
        }
        let (id, secret) = key.expose_secret().split_once('-').ok_or(ScramError::Key)?;
        if id.is_empty() || !id.bytes().all(|c| c.is_ascii_digit()) || secret.is_empty() {
            return Err(ScramError::Key);
        }
        Ok(Self {
            bare: format!("n={username}:{id},r={}", BASE64_STANDARD.encode(nonce)),
            nonce,
            secret: Zeroizing::new(secret.to_owned()),
        })
    }

    /// The first message.
    pub(crate) fn message(&self) -> String {
        format!("{HEADER}{}", self.bare)
    }

    /// The next message, and the proof that the NAS must answer to it. Takes a second of work.
    pub(crate) fn answer(self, server_first: &str) -> Result<(String, ServerProof), ScramError> {
        let (nonce, salt, iterations) = read_server_first(server_first)?;
        let bytes = BASE64_STANDARD.decode(nonce);
        let bytes = bytes.map_err(|_| ScramError::Message)?;
        if !bytes.starts_with(&self.nonce) || bytes.len() == NONCE {
            return Err(ScramError::Nonce);
        }
        let mut salted = Zeroizing::new([0_u8; LENGTH]);
        let secret = self.secret.as_bytes();
        pbkdf2::derive(
            pbkdf2::PBKDF2_HMAC_SHA512,
            iterations,
            &salt,
            secret,
            &mut *salted,
        );
        let client_key = Zeroizing::new(sign(&*salted, b"Client Key"));
        let stored_key = digest(&SHA512, &*client_key);
        let header = BASE64_STANDARD.encode(HEADER);
        let without_proof = format!("c={header},r={nonce}");
        let exchange = format!("{},{server_first},{without_proof}", self.bare);
        let signature = sign(stored_key.as_ref(), exchange.as_bytes());
        let proof: Vec<u8> = client_key
            .iter()
            .zip(signature)
            .map(|(key, sign)| key ^ sign)
            .collect();
        let server_key = sign(&*salted, b"Server Key");
        let expected = sign(&server_key, exchange.as_bytes());
        let proof = BASE64_STANDARD.encode(proof);
        Ok((format!("{without_proof},p={proof}"), ServerProof(expected)))
    }
}

impl ServerProof {
    /// Checks the last message of the NAS.
    pub(crate) fn verify(&self, server_final: &str) -> Result<(), ScramError> {
        let signature = server_final.strip_prefix("v=").ok_or(ScramError::Message)?;
        let signature = BASE64_STANDARD
            .decode(signature)
            .map_err(|_| ScramError::Message)?;
        verify_slices_are_equal(&signature, &self.0).map_err(|_| ScramError::Proof)
    }
}

fn read_server_first(message: &str) -> Result<(&str, Vec<u8>, NonZeroU32), ScramError> {
    let fields: Vec<&str> = message.split(',').collect();
    let [nonce, salt, iterations] = fields.as_slice() else {
        return Err(ScramError::Message);
    };
    let nonce = nonce.strip_prefix("r=").ok_or(ScramError::Message)?;
    let salt = salt.strip_prefix("s=").ok_or(ScramError::Message)?;
    let salt = BASE64_STANDARD
        .decode(salt)
        .map_err(|_| ScramError::Message)?;
    let iterations = iterations
        .strip_prefix("i=")
        .and_then(|i| i.parse::<u32>().ok());
    let iterations = iterations.ok_or(ScramError::Message)?;
    let safe = ITERATIONS
        .contains(&iterations)
        .then(|| NonZeroU32::new(iterations));
    Ok((nonce, salt, safe.flatten().ok_or(ScramError::Iterations)?))
}

fn sign(key: &[u8], message: &[u8]) -> [u8; LENGTH] {
    let key = hmac::Key::new(hmac::HMAC_SHA512, key);
    let tag = hmac::sign(&key, message);
    let mut bytes = [0; LENGTH];
    bytes.copy_from_slice(tag.as_ref());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    // What TrueNAS's own client (truenas_api_client, py_scram) sent and answered as both sides, with the user
    // `csi`, the key `7-secret` and 50,000 iterations.
    const CLIENT_FIRST: &str = "n,,n=csi:7,r=LYvOoCJYFlsJ7OIFuMoWLjVczE5my6y69G8cPVc3uiE=";
    const SERVER_FIRST: &str = "r=LYvOoCJYFlsJ7OIFuMoWLjVczE5my6y69G8cPVc3uiFioM6BAJQLNmQBES4JO0arS5Ar\
                                8EZRpyf29XcZpkm1ew==,s=c2FsdHNhbHRzYWx0c2FsdA==,i=50000";
    const CLIENT_FINAL: &str = "c=biws,r=LYvOoCJYFlsJ7OIFuMoWLjVczE5my6y69G8cPVc3uiFioM6BAJQLNmQBES4JO0ar\
                                S5Ar8EZRpyf29XcZpkm1ew==,p=O14bOhJ0ENKrR4NTDM6E4SAAf4j2HYH+RYbwwZakbwLtGR\
                                cfiUX6PoS6LEerf2odsNrvYvTH4xvJ7ge+Dmf4zQ==";
    const SERVER_FINAL: &str = "v=EbQO4wT5pWzsHkJHcU28jKM5/hfo/Dc/af+tmNs1zOhMA9Xqqap1r9miWn8oH27TR4QxpZn5\
                                XFBlByfFq9EhSg==";

    fn begin() -> ClientFirst {
        let (_, nonce) = CLIENT_FIRST.split_once("r=").expect("a nonce");
        let nonce = BASE64_STANDARD.decode(nonce).expect("base64");
        let nonce = nonce.try_into().expect("32 bytes");
        ClientFirst::with_nonce("csi", &"7-secret".into(), nonce).expect("begins")
    }

    #[test]
    fn an_exchange_is_that_of_the_client_of_truenas() {
        assert_eq!(begin().message(), CLIENT_FIRST);
        let (message, proof) = begin().answer(SERVER_FIRST).expect("an answer");
        assert_eq!(message, CLIENT_FINAL);
        assert_eq!(proof.verify(SERVER_FINAL), Ok(()));
        let other = format!("v={}", BASE64_STANDARD.encode([7; LENGTH]));
        assert_eq!(proof.verify(&other), Err(ScramError::Proof));
        assert_eq!(proof.verify("e=no"), Err(ScramError::Message));
    }

    #[test]
    fn a_false_first_answer_is_refused() {
        let own = begin().nonce;
        let longer = |nonce: [u8; NONCE]| BASE64_STANDARD.encode([nonce, [9; NONCE]].concat());
        let (ours, other) = (longer(own), longer([1; NONCE]));
        let salt = "c2FsdHNhbHRzYWx0c2FsdA==";
        let alone = BASE64_STANDARD.encode(own);
        for (first, error) in [
            (format!("r={other},s={salt},i=50000"), ScramError::Nonce),
            (format!("r={alone},s={salt},i=50000"), ScramError::Nonce),
            (
                format!("r={alone}REST,s={salt},i=50000"),
                ScramError::Message,
            ),
            (format!("r={ours},s={salt},i=4096"), ScramError::Iterations),
            (
                format!("r={ours},s={salt},i=4294967295"),
                ScramError::Iterations,
            ),
            (format!("r={ours},s=?,i=50000"), ScramError::Message),
            ("e=unknown-user".to_owned(), ScramError::Message),
        ] {
            assert_eq!(begin().answer(&first).err(), Some(error), "{first}");
        }
    }

    #[test]
    fn a_key_or_a_user_name_that_scram_cannot_carry_is_refused() {
        for key in ["secret", "-secret", "x-secret", "7-"] {
            let refused = ClientFirst::new("csi", &key.into()).err();
            assert_eq!(refused, Some(ScramError::Key), "{key}");
        }
        for user in ["", "a,b", "a=b", "a:b", "é"] {
            let refused = ClientFirst::new(user, &"7-secret".into()).err();
            assert_eq!(refused, Some(ScramError::UserName), "{user}");
        }
    }
}
