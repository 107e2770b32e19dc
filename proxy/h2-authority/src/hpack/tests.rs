use proptest::prelude::*;

use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

fn pairs(fields: &[Field]) -> Vec<(&str, &str)> {
    let text = |bytes| std::str::from_utf8(bytes).unwrap();
    fields
        .iter()
        .map(|field| (text(&field.name), text(&field.value)))
        .collect()
}

type Pairs = &'static [(&'static str, &'static str)];

/// A block, its fields, and the size of the table after it.
type Step = (&'static str, Pairs, usize);

const FIRST: Pairs = &[
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "www.example.com"),
];
const SECOND: Pairs = &[
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "www.example.com"),
    ("cache-control", "no-cache"),
];
const THIRD: Pairs = &[
    (":method", "GET"),
    (":scheme", "https"),
    (":path", "/index.html"),
    (":authority", "www.example.com"),
    ("custom-key", "custom-value"),
];

fn decodes_in_turn(blocks: &[Step], limit: usize) {
    let mut decoder = Decoder::new(64 * 1024);
    decoder.resize(limit).unwrap();
    for (block, expected, table_size) in blocks {
        assert_eq!(pairs(&decoder.decode(&bytes(block)).unwrap()), *expected);
        assert_eq!(decoder.table_size, *table_size);
    }
}

#[test]
fn the_single_fields_of_rfc_7541_c_2_are_read() {
    let literal = "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572";
    decodes_in_turn(
        &[(literal, &[("custom-key", "custom-header")], 55)],
        TABLE_SIZE,
    );
    let unindexed = "040c 2f73 616d 706c 652f 7061 7468";
    decodes_in_turn(&[(unindexed, &[(":path", "/sample/path")], 0)], TABLE_SIZE);
    let never = bytes("1008 7061 7373 776f 7264 0673 6563 7265 74");
    let fields = Decoder::new(1024).decode(&never).unwrap();
    assert_eq!(pairs(&fields), [("password", "secret")]);
    assert!(fields[0].never_indexed);
    let mut again = Vec::new();
    fields[0].encode(&mut again);
    assert_eq!(again, never);
}

#[test]
fn the_requests_of_rfc_7541_c_3_without_huffman_are_read() {
    let blocks = [
        (
            "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            FIRST,
            57,
        ),
        ("8286 84be 5808 6e6f 2d63 6163 6865", SECOND, 110),
        (
            "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
            THIRD,
            164,
        ),
    ];
    decodes_in_turn(&blocks, TABLE_SIZE);
}

#[test]
fn the_requests_of_rfc_7541_c_4_with_huffman_are_read() {
    let blocks = [
        ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", FIRST, 57),
        ("8286 84be 5886 a8eb 1064 9cbf", SECOND, 110),
        (
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
            THIRD,
            164,
        ),
    ];
    decodes_in_turn(&blocks, TABLE_SIZE);
}

#[test]
fn the_responses_of_rfc_7541_c_6_are_read_with_a_table_that_evicts() {
    const FOUND: Pairs = &[
        (":status", "302"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ];
    const REDIRECT: Pairs = &[(":status", "307"), FOUND[1], FOUND[2], FOUND[3]];
    let blocks = [
        (
            "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 \
             2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
            FOUND,
            222,
        ),
        ("4883 640e ffc1 c0bf", REDIRECT, 222),
    ];
    decodes_in_turn(&blocks, 256);
}

#[test]
fn what_no_client_may_send_is_refused() {
    let refused = [
        ("80", HpackError::Index),
        ("be", HpackError::Index),
        ("ff80 8080 8001", HpackError::Integer),
        ("41", HpackError::Truncated),
        ("4105 6162", HpackError::Truncated),
        ("3fe2 1f", HpackError::TableSize),
        ("8220", HpackError::TableSize),
        // A whole byte of padding; padding of zeros; end-of-string itself.
        ("4182 1fff", HpackError::Huffman),
        ("4181 18", HpackError::Huffman),
        ("4184 ffff fffc", HpackError::Huffman),
    ];
    for (block, expected) in refused {
        assert_eq!(
            Decoder::new(1024).decode(&bytes(block)),
            Err(expected),
            "{block}"
        );
    }
}

#[test]
fn a_small_block_cannot_unfold_into_a_list_beyond_the_limit() {
    let mut decoder = Decoder::new(16 * 1024);
    let mut block = Vec::new();
    block.extend([0x40, 1, b'a']);
    encode_length(3000, &mut block);
    block.extend(std::iter::repeat_n(b'b', 3000));
    assert_eq!(decoder.decode(&block).unwrap().len(), 1);
    assert_eq!(decoder.decode(&[0xbe; 6]), Err(HpackError::ListTooLarge));
}

fn fields() -> impl Strategy<Value = Vec<Field>> {
    let text = || {
        prop_oneof![
            "[a-z:-]{1,12}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..300),
        ]
    };
    let field = (text(), text(), any::<bool>()).prop_map(|(name, value, never_indexed)| Field {
        name,
        value,
        never_indexed,
    });
    prop::collection::vec(field, 0..12)
}

/// Encodes as a client may: each field indexed or not, Huffman or not.
fn encode_like_a_client(fields: &[Field], choices: &[(bool, bool)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (field, (indexed, coded)) in fields.iter().zip(choices.iter().cycle()) {
        block.push(match (field.never_indexed, indexed) {
            (true, _) => 0x10,
            (false, true) => 0x40,
            (false, false) => 0x00,
        });
        for text in [&field.name, &field.value] {
            let bytes = if *coded {
                huffman::encode(text)
            } else {
                text.clone()
            };
            let at = block.len();
            encode_length(bytes.len(), &mut block);
            if *coded {
                block[at] |= 0x80;
            }
            block.extend(bytes);
        }
    }
    block
}

proptest! {
    #[test]
    fn whatever_is_encoded_is_decoded_to_the_same(
        fields in fields(),
        choices in prop::collection::vec(any::<(bool, bool)>(), 1..12),
    ) {
        let mut decoder = Decoder::new(1 << 20);
        let block = encode_like_a_client(&fields, &choices);
        prop_assert_eq!(&decoder.decode(&block).unwrap(), &fields);
        prop_assert!(decoder.table_size <= TABLE_SIZE);
        // Every entry of the table can be referred to, and says what was put there.
        for at in 0..decoder.table.len() {
            let (name, value) = decoder.table[at].clone();
            let index = match u8::try_from(at + 62).unwrap() {
                short @ ..127 => vec![0x80 | short],
                long => vec![0xff, long - 127],
            };
            let read = decoder.decode(&index).unwrap();
            prop_assert_eq!((&read[0].name, &read[0].value), (&name, &value));
        }
    }

    #[test]
    fn what_we_write_needs_no_memory_to_be_read(fields in fields()) {
        let mut block = Vec::new();
        for field in &fields {
            field.encode(&mut block);
        }
        let mut decoder = Decoder::new(1 << 20);
        prop_assert_eq!(decoder.decode(&block).unwrap(), fields);
        prop_assert_eq!(decoder.table_size, 0);
    }

    #[test]
    fn no_input_makes_the_decoder_panic_or_outgrow_its_limits(
        blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..5),
    ) {
        let mut decoder = Decoder::new(4096);
        for block in blocks {
            match decoder.decode(&block) {
                Ok(fields) => prop_assert!(fields.iter().map(Field::size).sum::<usize>() <= 4096),
                Err(_) => break,
            }
            prop_assert!(decoder.table_size <= TABLE_SIZE);
        }
    }
}
