//! The `message!` macro and the traits that it implements.

use bytes::Bytes;

use super::api_key::ApiKey;
use super::schema::{Structure, Versions};
use super::wire::{DecodeCause, DecodeError, Reader, Wire};
use super::writer::Writer;

/// A message as a whole.
pub trait Message: Wire + Default {
    /// Versions that exist, as in Kafka's definition. What is served is said in [`super::api_key`].
    const VERSIONS: Versions;
    /// Versions with compact lengths and tagged fields.
    const FLEXIBLE: Versions;
    /// The description of its fields.
    const STRUCTURE: &'static Structure;

    /// Reads a message that fills `bytes`.
    fn decode(bytes: Bytes, version: i16) -> Result<Self, DecodeError> {
        Self::decode_counted(bytes, version, usize::MAX).map(|(message, _)| message)
    }

    /// Reads a message that fills `bytes`, and counts the elements of all its arrays, of which it may have so many.
    fn decode_counted(bytes: Bytes, version: i16, most_elements: usize) -> Result<(Self, usize), DecodeError> {
        let reader = Reader::new(bytes, version, Self::FLEXIBLE.contains(version));
        let mut reader = reader.with_elements(most_elements);
        let in_message = |error: DecodeError| error.within(Self::STRUCTURE.name, "");
        if !Self::VERSIONS.contains(version) {
            return Err(in_message(reader.error(DecodeCause::UnknownVersion(version))));
        }
        let message = Self::read(&mut reader, false)?;
        reader.finish().map_err(in_message)?;
        Ok((message, most_elements - reader.elements_left()))
    }

    /// Writes the message. A value that this version has no field for is left out, and a null that it has no form for
    /// is written as the empty value: an answer can be built once for all versions.
    fn encode(&self, writer: &mut Writer, version: i16) {
        debug_assert!(Self::VERSIONS.contains(version), "{} has no version {version}", Self::STRUCTURE.name);
        writer.set_version(version, Self::FLEXIBLE.contains(version));
        self.write(writer, false);
    }

    /// Writes the message into one buffer. For small things, and for tests.
    fn encode_joined(&self, version: i16) -> Bytes {
        let mut writer = Writer::new(version, Self::FLEXIBLE.contains(version));
        self.encode(&mut writer, version);
        writer.into_joined()
    }
}

/// A request, and what answers it.
pub trait Request: Message {
    /// Its number in the protocol.
    const API: ApiKey;
    /// The message that answers it.
    type Response: Message;
}

/// Declares a message, and then the structures nested in it.
///
/// A field is `name [versions, nullable versions, tag number]: type = default`, versions in Kafka's own notation; all but
/// name, versions and type may be missing. The names are Kafka's in snake case. Defaults that are zero, empty or null
/// need no mention. A nullable field is an `Option`, whose default is null.
macro_rules! message {
    (
        $(#[$message_meta:meta])*
        pub message $message:ident [$valid:literal, flexible $flexible:literal] { $($message_fields:tt)* }
        $($(#[$meta:meta])* pub struct $name:ident { $($fields:tt)* })*
    ) => {
        message!(@structure $(#[$message_meta])* $message { $($message_fields)* });

        impl $crate::kafka::message::Message for $message {
            const VERSIONS: $crate::kafka::schema::Versions = $crate::kafka::schema::Versions::parse($valid);
            const FLEXIBLE: $crate::kafka::schema::Versions = $crate::kafka::schema::Versions::parse($flexible);
            const STRUCTURE: &'static $crate::kafka::schema::Structure = &Self::DESCRIPTION;
        }

        $(message!(@structure $(#[$meta])* $name { $($fields)* });)*
    };

    (@structure $(#[$meta:meta])* $name:ident {
        $(
            $(#[$field_meta:meta])*
            $field:ident [$versions:literal $(, nullable $nullable:literal)? $(, tag $tag:literal)?]:
            $type:ty $(= $default:expr)?
        ),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: message!(@default $($default)?),)* }
            }
        }

        impl $name {
            const DESCRIPTION: $crate::kafka::schema::Structure = $crate::kafka::schema::Structure {
                name: stringify!($name),
                fields: &[$($crate::kafka::schema::Field {
                    name: stringify!($field),
                    kind: <$type as $crate::kafka::wire::Wire>::KIND,
                    versions: $crate::kafka::schema::Versions::parse($versions),
                    nullable: message!(@versions $($nullable)?),
                    tag: message!(@tag $($tag)?),
                    write_default: |writer| {
                        const NULLABLE: $crate::kafka::schema::Versions = message!(@versions $($nullable)?);
                        let default: $type = message!(@default $($default)?);
                        let nullable = NULLABLE.contains(writer.version());
                        $crate::kafka::wire::Wire::write(&default, writer, nullable);
                    },
                },)*],
            };
        }

        impl $crate::kafka::wire::Wire for $name {
            const KIND: $crate::kafka::schema::Kind = $crate::kafka::schema::Kind::Struct(&Self::DESCRIPTION);

            fn min_bytes(version: i16, flexible: bool) -> usize {
                let mut bytes = usize::from(flexible);
                $({
                    const VERSIONS: $crate::kafka::schema::Versions = $crate::kafka::schema::Versions::parse($versions);
                    const TAG: Option<u32> = message!(@tag $($tag)?);
                    if TAG.is_none() && VERSIONS.contains(version) {
                        bytes += <$type as $crate::kafka::wire::Wire>::min_bytes(version, flexible);
                    }
                })*
                bytes
            }

            fn read(
                reader: &mut $crate::kafka::wire::Reader,
                _: bool,
            ) -> Result<Self, $crate::kafka::wire::DecodeError> {
                let version = reader.version();
                let mut value = Self::default();
                $({
                    const VERSIONS: $crate::kafka::schema::Versions = $crate::kafka::schema::Versions::parse($versions);
                    const NULLABLE: $crate::kafka::schema::Versions = message!(@versions $($nullable)?);
                    const TAG: Option<u32> = message!(@tag $($tag)?);
                    if TAG.is_none() && VERSIONS.contains(version) {
                        value.$field = $crate::kafka::wire::Wire::read(reader, NULLABLE.contains(version))
                            .map_err(|error| error.within(stringify!($name), stringify!($field)))?;
                    }
                })*
                if reader.flexible() {
                    reader.tagged_fields(|_tag, _reader| {
                        $({
                            const VERSIONS: $crate::kafka::schema::Versions =
                                $crate::kafka::schema::Versions::parse($versions);
                            const NULLABLE: $crate::kafka::schema::Versions = message!(@versions $($nullable)?);
                            const TAG: Option<u32> = message!(@tag $($tag)?);
                            if TAG == Some(_tag) && VERSIONS.contains(version) {
                                value.$field = $crate::kafka::wire::Wire::read(_reader, NULLABLE.contains(version))
                                    .map_err(|error| error.within(stringify!($name), stringify!($field)))?;
                                return Ok(true);
                            }
                        })*
                        Ok(false)
                    }).map_err(|error| error.within(stringify!($name), "tagged fields"))?;
                }
                Ok(value)
            }

            fn write(&self, writer: &mut $crate::kafka::writer::Writer, _: bool) {
                let version = writer.version();
                let mut _tagged_fields = 0;
                $({
                    const VERSIONS: $crate::kafka::schema::Versions = $crate::kafka::schema::Versions::parse($versions);
                    const NULLABLE: $crate::kafka::schema::Versions = message!(@versions $($nullable)?);
                    const TAG: Option<u32> = message!(@tag $($tag)?);
                    if VERSIONS.contains(version) {
                        if TAG.is_none() {
                            $crate::kafka::wire::Wire::write(&self.$field, writer, NULLABLE.contains(version));
                        } else if $crate::kafka::message::differs(&self.$field, message!(@default $($default)?)) {
                            _tagged_fields += 1;
                        }
                    }
                })*
                if writer.flexible() {
                    writer.put_unsigned_varint(_tagged_fields);
                    $({
                        const VERSIONS: $crate::kafka::schema::Versions =
                            $crate::kafka::schema::Versions::parse($versions);
                        const NULLABLE: $crate::kafka::schema::Versions = message!(@versions $($nullable)?);
                        const TAG: Option<u32> = message!(@tag $($tag)?);
                        if let Some(tag) = TAG
                            && VERSIONS.contains(version)
                            && $crate::kafka::message::differs(&self.$field, message!(@default $($default)?))
                        {
                            writer.put_tagged(tag, |writer| {
                                $crate::kafka::wire::Wire::write(&self.$field, writer, NULLABLE.contains(version));
                            });
                        }
                    })*
                }
            }
        }

        impl $crate::kafka::wire::Nullable for $name {
            fn read_nullable(
                reader: &mut $crate::kafka::wire::Reader,
            ) -> Result<Option<Self>, $crate::kafka::wire::DecodeError> {
                $crate::kafka::message::read_nullable_structure(reader)
            }

            fn write_null(writer: &mut $crate::kafka::writer::Writer) {
                writer.put(&(-1_i8).to_be_bytes());
            }

            fn write_some(&self, writer: &mut $crate::kafka::writer::Writer) {
                writer.put(&1_i8.to_be_bytes());
                $crate::kafka::wire::Wire::write(self, writer, false);
            }
        }
    };

    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
    (@versions) => { $crate::kafka::schema::Versions::NONE };
    (@versions $versions:literal) => { $crate::kafka::schema::Versions::parse($versions) };
    (@tag) => { None };
    (@tag $tag:literal) => { Some($tag) };
}

/// Whether a tagged field must be written: its default is left out.
pub(crate) fn differs<T: PartialEq>(value: &T, default: T) -> bool {
    *value != default
}

/// A structure that may be null has one byte in front: negative stands for null.
pub(crate) fn read_nullable_structure<T: Wire>(reader: &mut Reader) -> Result<Option<T>, DecodeError> {
    if i8::from_be_bytes(reader.array()?) < 0 { Ok(None) } else { T::read(reader, false).map(Some) }
}
