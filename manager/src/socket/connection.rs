//! A client's connection. It corrects a header that the server would refuse without good reason.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;
use tonic::transport::server::{Connected, UdsConnectInfo};

use super::header_block;

/// The first bytes that every client of HTTP/2 sends.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame's header.
const FRAME_HEADER_BYTES: usize = 9;
/// Maximum payload of a frame by the server's settings.
const FRAME_BYTES_MAX: usize = 1 << 14;
/// The type of frames that begin a header block.
const HEADERS: u8 = 1;
const FLAG_PADDED: u8 = 0x8;
const FLAG_PRIORITY: u8 = 0x20;
/// Bytes before the header block, for each flag.
const PAD_LENGTH_BYTES: usize = 1;
const PRIORITY_BYTES: usize = 5;
const READ_BYTES: usize = 8 << 10;

/// A client's connection. Percent signs in `:authority` are replaced: see [`header_block`].
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    frames: Frames,
    /// One of the limited number of permits.
    _client: OwnedSemaphorePermit,
}

impl Connection {
    /// The connection of a new client.
    #[must_use]
    pub(crate) fn new(stream: UnixStream, client: OwnedSemaphorePermit) -> Connection {
        Connection { stream, frames: Frames::default(), _client: client }
    }
}

/// Received bytes: first those that were examined, then those that were not.
#[derive(Debug, Default)]
struct Frames {
    bytes: Vec<u8>,
    /// Bytes at the front that were examined.
    looked_through: usize,
    /// Number of examined bytes that the server has read.
    taken: usize,
    /// Remaining bytes of a frame that need not be examined.
    rest: usize,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Preface,
    Frames,
    /// The bytes are not HTTP/2, or the stream is at its end: everything passes unchanged.
    Other,
}

impl Frames {
    /// Adds received bytes; an empty slice means the end.
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.looked_through -= self.taken;
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
        if bytes.is_empty() {
            self.stage = Stage::Other;
        }
        while self.step() {}
    }

    /// The bytes that the server may read now.
    fn ready(&self) -> &[u8] {
        &self.bytes[self.taken..self.looked_through]
    }

    /// Examines the next piece. Returns `false` if more bytes are needed first.
    fn step(&mut self) -> bool {
        let left = &mut self.bytes[self.looked_through..];
        let seen = match self.stage {
            _ if left.is_empty() => return false,
            Stage::Other => left.len(),
            Stage::Preface if left.starts_with(PREFACE) => {
                self.stage = Stage::Frames;
                PREFACE.len()
            }
            Stage::Preface if PREFACE.starts_with(left) => return false,
            Stage::Preface => {
                self.stage = Stage::Other;
                return true;
            }
            Stage::Frames if self.rest > 0 => {
                let seen = self.rest.min(left.len());
                self.rest -= seen;
                seen
            }
            Stage::Frames => {
                let &[high, middle, low, kind, flags, ..] = &*left else { return false };
                let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                if left.len() < FRAME_HEADER_BYTES {
                    return false;
                }
                // A frame that is too long makes the server close the connection, so it is not collected.
                if kind != HEADERS || length > FRAME_BYTES_MAX {
                    self.rest = length;
                    FRAME_HEADER_BYTES
                } else if let Some(payload) = left.get_mut(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + length) {
                    if let Some(block) = header_block_in(payload, flags) {
                        header_block::replace_percent_signs(block);
                    }
                    FRAME_HEADER_BYTES + length
                } else {
                    return false;
                }
            }
        };
        self.looked_through += seen;
        true
    }
}

/// The header block in the payload of a HEADERS frame.
fn header_block_in(payload: &mut [u8], flags: u8) -> Option<&mut [u8]> {
    let is = |flag: u8| flags & flag != 0;
    let padding = if is(FLAG_PADDED) { usize::from(*payload.first()?) } else { 0 };
    let begin = if is(FLAG_PADDED) { PAD_LENGTH_BYTES } else { 0 } + if is(FLAG_PRIORITY) { PRIORITY_BYTES } else { 0 };
    let end = payload.len().checked_sub(padding)?;
    payload.get_mut(begin..end)
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.frames.ready().is_empty() {
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read))?;
            self.frames.push(read.filled());
            if read.filled().is_empty() {
                break;
            }
        }
        let ready = self.frames.ready();
        let fits = &ready[..ready.len().min(into.remaining())];
        into.put_slice(fits);
        self.frames.taken += fits.len();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl Connected for Connection {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> UdsConnectInfo {
        self.stream.connect_info()
    }
}

/// The bytes that the server reads when `sent` comes in pieces of `size` bytes.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn told(sent: &[u8], size: usize) -> Vec<u8> {
    let (mut frames, mut told) = (Frames::default(), Vec::new());
    for piece in sent.chunks(size).chain([&[][..]]) {
        frames.push(piece);
        told.extend_from_slice(frames.ready());
        frames.taken = frames.looked_through;
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = payload.len() as u32;
        [&length.to_be_bytes()[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn header_blocks_are_found_in_whatever_pieces_they_come() {
        let with = |authority: &[u8]| {
            let block = [&[0x83, 0x41, authority.len() as u8], authority].concat();
            let padded = [&[3, 0, 0, 0, 0, 0][..], &block, &[b'%'; 3]].concat();
            [
                PREFACE,
                &frame(4, 0, &[0; 6]),
                &frame(HEADERS, 4, &block),
                // A data frame that looks like a header block stays unchanged.
                &frame(0, 1, &[0x41, 1, b'%']),
                &frame(HEADERS, 4 | FLAG_PADDED | FLAG_PRIORITY, &padded),
                &frame(HEADERS, 4, &[]),
                &frame(0, 1, &[]),
            ]
            .concat()
        };
        for size in [1, 2, 7, 40, 1000] {
            assert_eq!(told(&with(b"%2Frun%2Fm.sock"), size), with(b"-2Frun-2Fm.sock"), "{size}");
        }
    }

    #[test]
    fn other_protocols_than_http_2_pass_unchanged() {
        let odd = [
            b"GET / HTTP/1.1\r\nHost: %2F\r\n\r\n".to_vec(),
            PREFACE[..7].to_vec(),
            // Frames that are cut off, too long, or padded with more than their length.
            [PREFACE, &frame(HEADERS, 4, b"\x41\x01%")[..11]].concat(),
            [PREFACE, &[0xff, 0xff, 0xff, HEADERS, 4, 0, 0, 0, 1], b"\x41\x01%"].concat(),
            [PREFACE, &frame(HEADERS, 4 | FLAG_PADDED, b"\xff\x41\x01%")].concat(),
            [PREFACE, &frame(HEADERS, 4 | FLAG_PRIORITY, b"\x41\x01%")].concat(),
        ];
        for sent in odd {
            for size in [1, 5, 1000] {
                assert_eq!(told(&sent, size), sent);
            }
        }
    }
}
