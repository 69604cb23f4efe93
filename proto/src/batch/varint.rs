//! Zig-zag varints and a cursor over record bytes. Nothing here allocates.

/// Appends a zig-zag varint of 32 bits.
pub(super) fn put_varint(out: &mut Vec<u8>, value: i32) {
    put_varlong(out, i64::from(value));
}

/// Appends a zig-zag varint of 64 bits.
pub(super) fn put_varlong(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Bytes that `put_varlong` takes for this value.
pub(super) fn varlong_len(value: i64) -> usize {
    let bits = 64 - (((value << 1) ^ (value >> 63)) as u64 | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Undoes the zig-zag.
fn unzigzag(raw: u64) -> i64 {
    (raw >> 1) as i64 ^ -((raw & 1) as i64)
}

/// Takes values off the front of a slice. `None` means that it ended too early or holds nonsense.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) fn u8(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn varlong(&mut self) -> Option<i64> {
        let mut raw = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            // The tenth byte has room for one bit only.
            if shift == 63 && byte > 1 {
                return None;
            }
            raw |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(unzigzag(raw));
            }
        }
        None
    }

    pub(super) fn varint(&mut self) -> Option<i32> {
        // One byte is by far the most common length.
        if let Some((&first, rest)) = self.0.split_first()
            && first < 0x80
        {
            self.0 = rest;
            return Some(unzigzag(u64::from(first)) as i32);
        }
        self.varlong()?.try_into().ok()
    }

    /// A varint length and as many bytes; -1 is "none".
    pub(super) fn nullable_bytes(&mut self) -> Option<Option<&'a [u8]>> {
        match self.varint()? {
            -1 => Some(None),
            len => self.take(usize::try_from(len).ok()?).map(Some),
        }
    }
}
