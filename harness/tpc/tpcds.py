"""TPC-DS in PostgreSQL: the specification's schema, and data and query texts of DuckDB's extension.

DuckDB's tables have no lengths of texts and some other widths of integers. `TYPES` has the specification's types by
the end of a column's name, and the longest end counts; every number without a fraction is an integer.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import psycopg

from harness.tpc.generate import generated, load, queries

KEYS = {
    "call_center": "cc_call_center_sk",
    "catalog_page": "cp_catalog_page_sk",
    "catalog_returns": "cr_item_sk, cr_order_number",
    "catalog_sales": "cs_item_sk, cs_order_number",
    "customer": "c_customer_sk",
    "customer_address": "ca_address_sk",
    "customer_demographics": "cd_demo_sk",
    "date_dim": "d_date_sk",
    "household_demographics": "hd_demo_sk",
    "income_band": "ib_income_band_sk",
    "inventory": "inv_date_sk, inv_item_sk, inv_warehouse_sk",
    "item": "i_item_sk",
    "promotion": "p_promo_sk",
    "reason": "r_reason_sk",
    "ship_mode": "sm_ship_mode_sk",
    "store": "s_store_sk",
    "store_returns": "sr_item_sk, sr_ticket_number",
    "store_sales": "ss_item_sk, ss_ticket_number",
    "time_dim": "t_time_sk",
    "warehouse": "w_warehouse_sk",
    "web_page": "wp_web_page_sk",
    "web_returns": "wr_item_sk, wr_order_number",
    "web_sales": "ws_item_sk, ws_order_number",
    "web_site": "web_site_sk",
}
TYPES = {
    "_id": "char(16)",
    "_name": "varchar(50)",
    "_class": "varchar(50)",
    "i_class": "char(50)",
    "_hours": "char(20)",
    "_manager": "varchar(40)",
    "_mkt_class": "char(50)",
    "_desc": "varchar(100)",
    "_description": "varchar(100)",
    "i_item_desc": "varchar(200)",
    "r_reason_desc": "char(100)",
    "company_name": "char(50)",
    "street_number": "char(10)",
    "street_name": "varchar(60)",
    "street_type": "char(15)",
    "suite_number": "char(10)",
    "_city": "varchar(60)",
    "_county": "varchar(30)",
    "_state": "char(2)",
    "_zip": "char(10)",
    "_country": "varchar(20)",
    "location_type": "char(20)",
    "_gender": "char(1)",
    "marital_status": "char(1)",
    "education_status": "char(20)",
    "credit_rating": "char(10)",
    "_salutation": "char(10)",
    "first_name": "char(20)",
    "last_name": "char(30)",
    "_flag": "char(1)",
    "_login": "char(13)",
    "email_address": "char(50)",
    "day_name": "char(9)",
    "quarter_name": "char(6)",
    "d_holiday": "char(1)",
    "_weekend": "char(1)",
    "following_holiday": "char(1)",
    "d_current_day": "char(1)",
    "d_current_week": "char(1)",
    "d_current_month": "char(1)",
    "d_current_quarter": "char(1)",
    "d_current_year": "char(1)",
    "buy_potential": "char(15)",
    "_brand": "char(50)",
    "_category": "char(50)",
    "_manufact": "char(50)",
    "_size": "char(20)",
    "_formulation": "char(20)",
    "_color": "char(20)",
    "_units": "char(10)",
    "_container": "char(10)",
    "product_name": "char(50)",
    "promo_name": "char(50)",
    "_purpose": "char(15)",
    "discount_active": "char(1)",
    "_details": "varchar(100)",
    "p_channel_dmail": "char(1)",
    "p_channel_email": "char(1)",
    "p_channel_catalog": "char(1)",
    "p_channel_tv": "char(1)",
    "p_channel_radio": "char(1)",
    "p_channel_press": "char(1)",
    "p_channel_event": "char(1)",
    "p_channel_demo": "char(1)",
    "sm_type": "char(30)",
    "_code": "char(10)",
    "_carrier": "char(20)",
    "_contract": "char(20)",
    "am_pm": "char(2)",
    "_shift": "char(20)",
    "meal_time": "char(20)",
    "_url": "varchar(100)",
    "wp_type": "char(50)",
    "_department": "varchar(50)",
    "cp_type": "varchar(100)",
}


@cache
def _columns() -> dict[str, tuple[tuple[str, str], ...]]:
    """The columns of each table with their types in PostgreSQL."""
    with generated("tpcds", 0) as duck:
        found = {name: duck.execute(f"describe {name}").fetchall() for name in KEYS}
    return {name: tuple((str(row[0]), _type(str(row[0]), str(row[1]))) for row in rows) for name, rows in found.items()}


def _type(column: str, by_duckdb: str) -> str:
    if by_duckdb == "VARCHAR":
        return TYPES[max((end for end in TYPES if column.endswith(end)), key=len)]
    return "integer" if by_duckdb.endswith("INT") or by_duckdb == "INTEGER" else by_duckdb.lower()


def tables() -> dict[str, str]:
    """The list of columns by name of the table."""
    return {name: ", ".join(column for column, _ in columns) for name, columns in _columns().items()}


def statements() -> dict[str, str]:
    """The queries by name; PostgreSQL accepts the texts as they are."""
    return {f"tpcds {number:02}": text for number, text in queries("tpcds").items()}


def fill(connection: psycopg.Connection[Any], scale: float) -> None:
    """Create and fill the tables."""
    for name, columns in _columns().items():
        listed = ", ".join(f"{column} {type_}" for column, type_ in columns)
        connection.execute(f"create table {name} ({listed}, primary key ({KEYS[name]}))".encode())
    load(connection, "tpcds", scale, tables())
    connection.execute("analyze")
    connection.commit()
