//! EC keys in the old PEM form, encrypted as `ssh-keygen -m PEM` and `openssl ec -aes128` do it.
//!
//! Reference: RFC 1421 for the headers, `EVP_BytesToKey(3)` with MD5 for the key.

use aes::cipher::block_padding::{Error, Pkcs7};
use aes::cipher::{BlockCipherDecrypt, BlockModeDecrypt, KeyIvInit};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest as _, Md5};
use secrecy::SecretString;

use super::InvalidKey;

const BEGIN: &str = "-----BEGIN EC PRIVATE KEY-----";
const END: &str = "-----END EC PRIVATE KEY-----";
const CIPHER: &str = "DEK-Info: ";

/// The key in the same form without encryption. `None` for any other form.
///
/// `WrongPassphrase`: the passphrase is wrong, or the key damaged.
pub(super) fn decrypt(text: &str, passphrase: &str) -> Result<Option<SecretString>, InvalidKey> {
    let Some(plain) = decrypted(text, passphrase) else {
        return Ok(None);
    };
    // A wrong passphrase gives bad padding or, once in a while, something that is no DER sequence.
    let plain = plain.ok().filter(|der| der.first() == Some(&0x30));
    let der = plain.ok_or(InvalidKey::WrongPassphrase)?;
    let text = STANDARD.encode(der);
    Ok(Some(SecretString::from(format!(
        "{BEGIN}\n{text}\n{END}\n"
    ))))
}

/// What the text holds if it has this form, or that its padding is wrong.
fn decrypted(text: &str, passphrase: &str) -> Option<Result<Vec<u8>, Error>> {
    let (_, rest) = text.split_once(BEGIN)?;
    let (body, _) = rest.split_once(END)?;
    let (headers, data) = body.split_once("\n\n")?;
    let cipher = headers.lines().find_map(|line| line.strip_prefix(CIPHER))?;
    let (name, iv) = cipher.split_once(',')?;
    let iv = vector(iv)?;
    let data: String = data.split_whitespace().collect();
    let data = STANDARD.decode(data).ok()?;
    let key = key_of(passphrase, &iv);
    Some(match name {
        "AES-128-CBC" => opened::<aes::Aes128>(&key[..16], &iv, data),
        "AES-192-CBC" => opened::<aes::Aes192>(&key[..24], &iv, data),
        "AES-256-CBC" => opened::<aes::Aes256>(&key, &iv, data),
        _ => return None,
    })
}

/// The content of `data`, if its padding is right.
fn opened<C>(key: &[u8], iv: &[u8], mut data: Vec<u8>) -> Result<Vec<u8>, Error>
where
    C: BlockCipherDecrypt,
    cbc::Decryptor<C>: KeyIvInit,
{
    let cipher = cbc::Decryptor::<C>::new_from_slices(key, iv).map_err(|_| Error)?;
    let plain = cipher.decrypt_padded::<Pkcs7>(&mut data);
    plain.map(<[u8]>::to_vec)
}

fn vector(hex: &str) -> Option<[u8; 16]> {
    let hex = hex.trim();
    if hex.len() != 32 || !hex.is_ascii() {
        return None;
    }
    let mut iv = [0; 16];
    for (index, byte) in iv.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(iv)
}

/// Two rounds: 32 bytes. A shorter key is the beginning of it.
fn key_of(passphrase: &str, iv: &[u8; 16]) -> [u8; 32] {
    let salted = |before: &[u8]| {
        let mut digest = Md5::new();
        digest.update(before);
        digest.update(passphrase.as_bytes());
        digest.update(&iv[..8]);
        digest.finalize()
    };
    let first = salted(&[]);
    let second = salted(&first);
    let mut key = [0; 32];
    key[..16].copy_from_slice(&first);
    key[16..].copy_from_slice(&second);
    key
}
