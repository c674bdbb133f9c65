//! Clients in other languages, simulated by the bytes that they send.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::node::Node;

/// The HTTP/2 preface of every client, and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const STREAM: u8 = 1;

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    [&(payload.len() as u32).to_be_bytes()[1..], &[kind, flags, 0, 0, 0, STREAM], payload].concat()
}

fn field(name: &str, value: &str) -> Vec<u8> {
    let string = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    [&[0x40], &string(name)[..], &string(value)].concat()
}

/// Calls `service` with an empty message, and with `authority` as encoded header. Returns the type of the first frame
/// of the answer: 1 for headers, 3 if the stream was reset.
fn ask(node: &Node, authority: &[u8], service: &str) -> u8 {
    let block = [
        // `:method` POST and `:scheme` http, from the static table.
        &[0x83, 0x86],
        &field(":path", service)[..],
        authority,
        &field("te", "trailers"),
        &field("content-type", "application/grpc"),
    ]
    .concat();
    let mut stream = UnixStream::connect(&node.config.socket).unwrap();
    stream.write_all(PREFACE).unwrap();
    stream.write_all(&frame(1, END_HEADERS, &block)).unwrap();
    stream.write_all(&frame(0, END_STREAM, &[0; 5])).unwrap();
    loop {
        let mut header = [0; 9];
        stream.read_exact(&mut header).unwrap();
        let [high, middle, low, kind, _, _, _, _, number] = header;
        let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
        stream.read_exact(&mut payload).unwrap();
        if number == STREAM && [1, 3].contains(&kind) {
            return kind;
        }
    }
}

#[test]
fn an_authority_that_is_a_socket_s_path_is_no_error() {
    let node = Node::start();
    let method = "/aliquot.node.v1.NodeManager/GetNode";
    let of_c_core = field(":authority", "%2Frun%2Faliquot%2Fmanager.sock");
    // The same, Huffman-coded, with the name by its index.
    let in_code =
        b"\x41\x97\x54\x58\x6c\xb6\xa5\x45\x84\x74\x1b\xb5\xa7\x4a\xa2\xc3\x48\xea\x1c\xc5\xb1\x74\x1c\x9d\x7f";
    for authority in [&field(":authority", "localhost")[..], &of_c_core, in_code] {
        assert_eq!(ask(&node, authority, method), 1, "{authority:x?}");
    }
}

#[test]
fn many_idle_clients_do_not_block_others() {
    let node = Node::start();
    let idle: Vec<UnixStream> = (0..100).map(|_| UnixStream::connect(&node.config.socket).unwrap()).collect();
    assert!(node.list().is_empty());
    drop(idle);
}
