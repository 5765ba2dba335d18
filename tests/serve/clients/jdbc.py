"""What Java programs see, by pgjdbc and Spark's JDBC source. Arguments: driver, port, database, user, password."""

from __future__ import annotations

import sys
from typing import Any

from tidemark.spark import SparkOptions, spark_session

COUNT = "select state, count(*), sum(total), avg(total) from orders where customer >= ? group by state order by state"
ALL = "select id, customer, total, state, placed from orders order by id"


def main() -> None:
    """Print every result, and who answered."""
    driver, port, database, user, password = sys.argv[1:]
    spark = spark_session(SparkOptions("local[2]", conf={"spark.jars": driver, "spark.ui.enabled": "false"}))
    url = f"jdbc:postgresql://127.0.0.1:{port}/{database}"
    jvm: Any = spark.sparkContext._jvm
    properties = jvm.java.util.Properties()
    for name, value in {"user": user, "password": password}.items():
        properties.setProperty(name, value)
    connection = jvm.org.postgresql.Driver().connect(url, properties)
    for commits_itself in (True, False):
        connection.setAutoCommit(commits_itself)
        prepared = connection.prepareStatement(COUNT)
        for turn in range(8):  # from the fifth on, it is prepared at the server
            prepared.setInt(1, turn % 4)
            print(commits_itself, turn, rows(prepared.executeQuery()))
        prepared.close()
        print("answered by", answered(connection))
        fetching = connection.createStatement()
        fetching.setFetchSize(50)
        print(rows(fetching.executeQuery(ALL)))
        if not commits_itself:
            inserting = connection.prepareStatement("insert into orders values (?, 1, 2.5, 'new', current_date)")
            for key in range(5000, 5010):
                inserting.setInt(1, key)
                inserting.addBatch()
            print(list(inserting.executeBatch()))
            print(rows(connection.createStatement().executeQuery("select count(*), max(id) from orders")))
            connection.rollback()
    tables = connection.getMetaData()
    print(rows(tables.getColumns(None, "public", "orders", None)))
    print(rows(tables.getPrimaryKeys(None, "public", "orders")))
    connection.rollback()
    connection.close()
    options = {"url": url, "driver": "org.postgresql.Driver", "user": user, "password": password, "fetchsize": "70"}
    parts = {"partitionColumn": "id", "lowerBound": "1", "upperBound": "300", "numPartitions": "3"}
    for table in ("orders", f"({COUNT.replace('?', '0').replace('order by state', '')}) as counted"):
        chosen = options | (parts if table == "orders" else {}) | {"dbtable": table}
        print(sorted(map(str, spark.read.format("jdbc").options(**chosen).load().collect())))
    spark.stop()


def rows(result: Any) -> list[list[str]]:
    """All rows of a result, as text."""
    columns, found = range(1, result.getMetaData().getColumnCount() + 1), []
    while result.next():
        found.append([str(result.getString(column)) for column in columns])
    result.close()
    return found


def answered(connection: Any) -> str:
    """Who answered the last statement: nothing without a server in between."""
    try:
        ((report,),) = rows(connection.createStatement().executeQuery("show tidemark.last"))
    except Exception:  # noqa: BLE001 - the source has no such setting
        if not connection.getAutoCommit():
            connection.rollback()
        return ""
    return report.split(":")[0]


if __name__ == "__main__":
    main()
