//! A first walk over a request's bytes before they are decoded: every length must be backed by bytes that are there. The
//! decoder allocates an array's claimed length up front, so this is what keeps memory bounded on nonsense.

mod requests;

use bytes::{Buf as _, Bytes};

pub(super) use requests::*;

/// Elements of all arrays in one request, at most. More would cost more memory than any client's request is worth.
const MAX_ELEMENTS: usize = 250_000;

/// Tagged fields of one structure, at most; the newest Kafka has a handful.
const MAX_TAGS: u32 = 64;

/// Why bytes are not the request their header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Misshapen {
    /// A length or a field goes beyond the end.
    #[error("it ends before its fields do")]
    Short,
    /// A length that means nothing.
    #[error("a length in it is impossible")]
    Length,
    /// Absurdly many array elements.
    #[error("it has more than {MAX_ELEMENTS} array elements")]
    Elements,
    /// Tagged fields out of order, repeated, too many, or of the wrong size.
    #[error("its tagged fields are malformed")]
    Tags,
}

/// What a field holds.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// So many bytes.
    Fixed(usize),
    /// A string or "none".
    Text,
    /// Bytes or "none".
    Blob,
    /// An array of values without structure.
    List(&'static Kind),
    /// An array of structures.
    Many(&'static [Field]),
    /// A structure.
    One(&'static [Field]),
}

/// A field and the versions that have it.
#[derive(Clone, Copy)]
pub(super) struct Field {
    since: i16,
    until: i16,
    /// Tagged fields come after the others, in flexible versions.
    tag: Option<u32>,
    kind: Kind,
}

impl Field {
    const fn all(kind: Kind) -> Self {
        Self {
            since: 0,
            until: i16::MAX,
            tag: None,
            kind,
        }
    }

    const fn since(since: i16, kind: Kind) -> Self {
        Self {
            since,
            ..Self::all(kind)
        }
    }

    const fn until(until: i16, kind: Kind) -> Self {
        Self {
            until,
            ..Self::all(kind)
        }
    }

    const fn between(since: i16, until: i16, kind: Kind) -> Self {
        Self {
            since,
            until,
            ..Self::all(kind)
        }
    }

    const fn tagged(tag: u32, since: i16, kind: Kind) -> Self {
        Self {
            since,
            tag: Some(tag),
            ..Self::all(kind)
        }
    }

    fn is_in(&self, version: i16) -> bool {
        (self.since..=self.until).contains(&version)
    }
}

/// The fields of a request, in order.
pub(super) struct Shape {
    /// The first version with compact lengths and tagged fields.
    pub(super) flexible_since: i16,
    fields: &'static [Field],
}

impl Shape {
    /// Walks over a request body of this version; returns how many bytes it takes.
    pub(super) fn check(&self, version: i16, body: &[u8]) -> Result<usize, Misshapen> {
        let mut walk = Walk {
            rest: body,
            version,
            flexible: version >= self.flexible_since,
            elements: 0,
        };
        walk.structure(self.fields)?;
        Ok(body.len() - walk.rest.len())
    }
}

/// Skips the client id, and in flexible versions the tagged fields, that end a request's header; returns how many bytes.
pub(super) fn check_header_end(flexible: bool, bytes: &[u8]) -> Result<usize, Misshapen> {
    // The client id keeps its old encoding in every version, so that old brokers can read it.
    let mut walk = Walk {
        rest: bytes,
        version: 0,
        flexible: false,
        elements: 0,
    };
    walk.kind(Kind::Text)?;
    walk.flexible = flexible;
    walk.tags(&[])?;
    Ok(bytes.len() - walk.rest.len())
}

/// Takes a text off the front of a flexible version's bytes, for what `kafka-protocol` does not decode.
pub(super) fn take_text(bytes: &mut Bytes) -> Result<Option<Bytes>, Misshapen> {
    let mut walk = Walk {
        rest: bytes,
        version: 0,
        flexible: true,
        elements: 0,
    };
    let Some(size) = walk.varint()?.checked_sub(1) else {
        let start = bytes.len() - walk.rest.len();
        bytes.advance(start);
        return Ok(None);
    };
    let start = bytes.len() - walk.rest.len();
    walk.skip(size as usize)?;
    bytes.advance(start);
    Ok(Some(bytes.split_to(size as usize)))
}

struct Walk<'a> {
    rest: &'a [u8],
    version: i16,
    flexible: bool,
    elements: usize,
}

impl Walk<'_> {
    fn structure(&mut self, fields: &'static [Field]) -> Result<(), Misshapen> {
        let version = self.version;
        for field in fields
            .iter()
            .filter(|f| f.tag.is_none() && f.is_in(version))
        {
            self.kind(field.kind)?;
        }
        self.tags(fields)
    }

    fn kind(&mut self, kind: Kind) -> Result<(), Misshapen> {
        match kind {
            Kind::Fixed(size) => self.skip(size),
            Kind::Text if self.flexible => self.compact_bytes(),
            Kind::Text => {
                let len = i16::from_be_bytes(self.fixed()?);
                self.nullable(i32::from(len))
            }
            Kind::Blob if self.flexible => self.compact_bytes(),
            Kind::Blob => {
                let len = i32::from_be_bytes(self.fixed()?);
                self.nullable(len)
            }
            Kind::List(element) => self.array(|walk| walk.kind(*element)),
            Kind::Many(fields) => self.array(|walk| walk.structure(fields)),
            Kind::One(fields) => self.structure(fields),
        }
    }

    fn array(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), Misshapen>,
    ) -> Result<(), Misshapen> {
        let count = if self.flexible {
            self.varint()?.saturating_sub(1) as usize
        } else {
            match i32::from_be_bytes(self.fixed()?) {
                -1 => 0,
                count => usize::try_from(count).map_err(|_| Misshapen::Length)?,
            }
        };
        self.elements = self.elements.saturating_add(count);
        if self.elements > MAX_ELEMENTS {
            return Err(Misshapen::Elements);
        }
        (0..count).try_for_each(|_| element(self))
    }

    fn tags(&mut self, known: &'static [Field]) -> Result<(), Misshapen> {
        if !self.flexible {
            return Ok(());
        }
        let count = self.varint()?;
        if count > MAX_TAGS {
            return Err(Misshapen::Tags);
        }
        let mut previous = None;
        for _ in 0..count {
            let tag = self.varint()?;
            let size = self.varint()? as usize;
            if previous.is_some_and(|p| p >= tag) || size > self.rest.len() {
                return Err(Misshapen::Tags);
            }
            previous = Some(tag);
            let (version, after) = (self.version, self.rest.len() - size);
            // The decoder reads a field it knows without looking at the size, so the two must agree.
            match known
                .iter()
                .find(|f| f.tag == Some(tag) && f.is_in(version))
            {
                Some(field) => self.kind(field.kind)?,
                None => self.skip(size)?,
            }
            if self.rest.len() != after {
                return Err(Misshapen::Tags);
            }
        }
        Ok(())
    }

    fn compact_bytes(&mut self) -> Result<(), Misshapen> {
        let len = self.varint()?.saturating_sub(1);
        self.skip(len as usize)
    }

    fn nullable(&mut self, len: i32) -> Result<(), Misshapen> {
        match len {
            -1 => Ok(()),
            len => self.skip(usize::try_from(len).map_err(|_| Misshapen::Length)?),
        }
    }

    fn varint(&mut self) -> Result<u32, Misshapen> {
        let mut value = 0;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.fixed()?;
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                // The fifth byte has room for four bits.
                return if shift == 28 && byte > 0x0f {
                    Err(Misshapen::Length)
                } else {
                    Ok(value)
                };
            }
        }
        Err(Misshapen::Length)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Misshapen> {
        let (value, rest) = self.rest.split_first_chunk().ok_or(Misshapen::Short)?;
        self.rest = rest;
        Ok(*value)
    }

    fn skip(&mut self, size: usize) -> Result<(), Misshapen> {
        self.rest = self.rest.get(size..).ok_or(Misshapen::Short)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
