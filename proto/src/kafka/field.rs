//! The field types that are not structures.

use bytes::Bytes;
use uuid::Uuid;

use super::error_code::ErrorCode;
use super::records::Records;
use super::schema::Kind;
use super::wire::{DecodeCause, DecodeError, KafkaString, Nullable, Reader, Wire};
use super::writer::Writer;
use crate::types::{
    BrokerId, GenerationId, LeaderEpoch, Offset, PartitionIndex, ProducerEpoch, ProducerId, TimestampMs, TopicId,
};

macro_rules! number {
    ($($type:ty: $kind:ident of $inner:ty, $read:expr, $write:expr;)*) => {$(
        impl Wire for $type {
            const KIND: Kind = Kind::$kind;

            fn min_bytes(_: i16, _: bool) -> usize {
                size_of::<$inner>()
            }

            fn read(reader: &mut Reader, _: bool) -> Result<Self, DecodeError> {
                let read: fn($inner) -> Self = $read;
                Ok(read(<$inner>::from_be_bytes(reader.array()?)))
            }

            fn write(&self, writer: &mut Writer, _: bool) {
                let write: fn(&Self) -> $inner = $write;
                writer.put(&write(self).to_be_bytes());
            }
        }
    )*};
}

number! {
    bool: Bool of u8, |byte| byte != 0, |value| u8::from(*value);
    i8: Int8 of i8, |number| number, |value| *value;
    i16: Int16 of i16, |number| number, |value| *value;
    i32: Int32 of i32, |number| number, |value| *value;
    i64: Int64 of i64, |number| number, |value| *value;
    ErrorCode: ErrorCode of i16, Self::from_code, |value| value.code();
    BrokerId: Int32 of i32, Self, |value| value.0;
    PartitionIndex: Int32 of i32, Self, |value| value.0;
    LeaderEpoch: Int32 of i32, Self, |value| value.0;
    GenerationId: Int32 of i32, Self, |value| value.0;
    ProducerEpoch: Int16 of i16, Self, |value| value.0;
    ProducerId: Int64 of i64, Self, |value| value.0;
    Offset: Int64 of i64, Self, |value| value.0;
    TimestampMs: Int64 of i64, Self, |value| value.0;
    Uuid: Uuid of u128, Self::from_u128, |value| value.as_u128();
    TopicId: Uuid of u128, |bits| Self(bits.to_be_bytes()), |value| u128::from_be_bytes(value.0);
}

/// What `read` of a type with a null form does where null is not allowed.
fn not_null<T>(value: Option<T>, reader: &Reader) -> Result<T, DecodeError> {
    value.ok_or_else(|| reader.error(DecodeCause::UnexpectedNull))
}

impl Wire for KafkaString {
    const KIND: Kind = Kind::String;

    fn min_bytes(_: i16, flexible: bool) -> usize {
        if flexible { 1 } else { 2 }
    }

    fn read(reader: &mut Reader, _: bool) -> Result<Self, DecodeError> {
        let value = Self::read_nullable(reader)?;
        not_null(value, reader)
    }

    fn write(&self, writer: &mut Writer, _: bool) {
        writer.put_string(self);
    }
}

impl Nullable for KafkaString {
    fn read_nullable(reader: &mut Reader) -> Result<Option<Self>, DecodeError> {
        let Some(length) = reader.string_length()? else { return Ok(None) };
        let bytes = reader.slice(length)?;
        Self::try_from(bytes).map(Some).map_err(|_| reader.error(DecodeCause::NotUtf8))
    }

    fn write_null(writer: &mut Writer) {
        writer.put_null_string();
    }
}

impl Wire for Bytes {
    const KIND: Kind = Kind::Bytes;

    fn min_bytes(_: i16, flexible: bool) -> usize {
        if flexible { 1 } else { 4 }
    }

    fn read(reader: &mut Reader, _: bool) -> Result<Self, DecodeError> {
        let value = Self::read_nullable(reader)?;
        not_null(value, reader)
    }

    fn write(&self, writer: &mut Writer, _: bool) {
        writer.put_length(self.len());
        writer.put(self);
    }
}

impl Nullable for Bytes {
    fn read_nullable(reader: &mut Reader) -> Result<Option<Self>, DecodeError> {
        reader.length()?.map(|length| reader.slice(length)).transpose()
    }

    fn write_null(writer: &mut Writer) {
        writer.put_null_length();
    }
}

/// Null records are read as empty ones and never written: clients disagree on what null means.
impl Wire for Records {
    const KIND: Kind = Kind::Records;

    fn min_bytes(_: i16, flexible: bool) -> usize {
        if flexible { 1 } else { 4 }
    }

    fn read(reader: &mut Reader, nullable: bool) -> Result<Self, DecodeError> {
        match Bytes::read_nullable(reader)? {
            None if !nullable => Err(reader.error(DecodeCause::UnexpectedNull)),
            bytes => Ok(bytes.unwrap_or_default().into()),
        }
    }

    fn write(&self, writer: &mut Writer, _: bool) {
        writer.put_records(self);
    }
}

impl<T: Wire> Wire for Vec<T> {
    const KIND: Kind = Kind::Array(&T::KIND);

    fn min_bytes(_: i16, flexible: bool) -> usize {
        if flexible { 1 } else { 4 }
    }

    fn read(reader: &mut Reader, _: bool) -> Result<Self, DecodeError> {
        let value = Self::read_nullable(reader)?;
        not_null(value, reader)
    }

    fn write(&self, writer: &mut Writer, _: bool) {
        writer.put_length(self.len());
        for element in self {
            element.write(writer, false);
        }
    }
}

impl<T: Wire> Nullable for Vec<T> {
    fn read_nullable(reader: &mut Reader) -> Result<Option<Self>, DecodeError> {
        reader.length()?.map(|count| reader.elements(count)).transpose()
    }

    fn write_null(writer: &mut Writer) {
        writer.put_null_length();
    }
}

impl<T: Nullable> Wire for Option<T> {
    const KIND: Kind = T::KIND;

    fn min_bytes(version: i16, flexible: bool) -> usize {
        match T::KIND {
            // Its null form is one byte, shorter than the structure.
            Kind::Struct(_) => 1,
            _ => T::min_bytes(version, flexible),
        }
    }

    fn read(reader: &mut Reader, nullable: bool) -> Result<Self, DecodeError> {
        if nullable { T::read_nullable(reader) } else { T::read(reader, false).map(Some) }
    }

    fn write(&self, writer: &mut Writer, nullable: bool) {
        match self {
            Some(value) if nullable => value.write_some(writer),
            Some(value) => value.write(writer, false),
            None if nullable => T::write_null(writer),
            None => T::default().write(writer, false),
        }
    }
}
