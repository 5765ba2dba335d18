"""Values of every type that are easily printed in another way, as SQL."""

VALUES = {
    "bool": "true, false",
    "int2": "-32768, 32767, 0",
    "int4": "-2147483648, 2147483647",
    "int8": "-9223372036854775808, 9223372036854775807",
    "oid": "0, 4294967295",
    "float4": "0, '-0', 'NaN', 'inf', '-inf', 1e-45, 3.4028235e38, 0.1, 16777216",
    "float8": "0, '-0', 'NaN', 'inf', '-inf', 5e-324, 1.7976931348623157e308, 2e23, 9007199254740993",
    "numeric": "0, 0.0000000001, 'NaN', 1e40, -1.50, 12345678901234567890.123456789",
    "numeric(12,7)": "0, 0.0000001, -99999.9999999, 'NaN'",
    "numeric(38,0)": "99999999999999999999999999999999999999",
    "text": "'', 'null', 'a b', e'tab\\t', e'new\\nline', 'q\"q', e'b\\\\s', '(x)', 'a,b', 'ü€😀', e'\\x0b', '\u00a0',"
    " e'\\u0085', e'\\u2028'",
    "varchar(9)": "'x', ' y '",
    "char(5)": "'x', ' y', ''",
    "name": "'some name'",
    '"char"': "'x', ''",
    "bytea": "'', '\\x00ff22', 'abc'",
    "date": "'0001-01-01', '9999-12-31', '0044-03-15 BC', '10000-01-01', 'infinity', '-infinity', '1582-10-10'",
    "timestamp": "'2024-02-29 12:00:00.1', '0001-01-01', '9999-12-31 23:59:59.999999', 'infinity', '1900-01-01 BC'",
    "timestamptz": "'2024-02-29 12:00:00.000001+03', '1969-12-31 23:59:59.999999+00', '-infinity', '1500-01-01+00'",
    "time": "'24:00', '01:02:03.4'",
    "timetz": "'01:02:03.4+05:30'",
    "interval": "'1 year -2 days 03:04:05.6', '0'",
    "uuid": "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
    "json": "'{\"a\": [1, 2]}'",
    "jsonb": '\'{"b":1, "a": "x y"}\'',
    "inet": "'192.168.0.1', '10.0.0.0/8'",
    "bit(3)": "b'101'",
    "money": "1234.5",
    "int4range": "'[1,5)', 'empty'",
    "point": "'(1,2)'",
    "int4[]": "'{}', '{1,NULL,-3}', '{{1,2},{3,4}}', '[2:3]={7,8}'",
    "text[]": "'{}', array['',null,'null','NULL','a b','q\"q',e'b\\\\s','{x}','a,b',e't\\tx','plain','ü',"
    "e'\\u0085',e'null\\u2028']",
    "bool[]": "'{t,f,NULL}'",
    "float8[]": "'{0,-0,NaN,inf,NULL,0.1,2e23}', '{}', '{{1.5,2.5}}', '[0:0]={0.1}'",
    "float4[]": "'{0.1,1e-45,NULL}'",
    "numeric[]": "'{1.50,NULL,NaN}'",
    "date[]": "'{2024-02-29,NULL}', '{infinity}'",
    "timestamptz[]": "'{2024-02-29 12:00:00+00}'",
    "bytea[]": "array['\\x00ff'::bytea,null,'']",
    "uuid[]": "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'",
}


def split(listed: str) -> list[str]:
    """Values that are separated by a comma and a space, outside of quotation marks."""
    parts, inside = [""], False
    for char in listed:
        inside ^= char == "'"
        parts[-1] += char
        if not inside and parts[-1].endswith(", "):
            parts[-1] = parts[-1][:-2]
            parts.append("")
    return parts
