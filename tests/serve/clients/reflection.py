"""What SQLAlchemy sees of a database: its reflected definitions, and some queries. Arguments: drivers' URLs."""

import sys

import sqlalchemy as sa
from sqlalchemy.ext import automap
from sqlalchemy.orm import Session


def main() -> None:
    """Print definitions and results, by each driver."""
    for url in sys.argv[1:]:
        engine = sa.create_engine(url)
        inspector = sa.inspect(engine)
        for table in sorted(inspector.get_table_names()):
            print(table, inspector.get_columns(table), inspector.get_pk_constraint(table))
            print(inspector.get_foreign_keys(table), inspector.get_indexes(table), inspector.get_table_comment(table))
        base = automap.automap_base()
        base.prepare(autoload_with=engine)
        orders, customers = base.classes.orders, base.classes.customers
        with Session(engine) as session:
            counted = sa.select(orders.state, sa.func.count(), sa.func.sum(orders.total)).group_by(orders.state)
            print(sorted(map(str, session.execute(counted).all())))
            joined = sa.select(customers.name, sa.func.avg(orders.total)).join(orders, orders.customer == customers.id)
            print(sorted(map(str, session.execute(joined.group_by(customers.name)).all())))
            print(
                [each.id for each in session.scalars(sa.select(orders).where(orders.total > 370).order_by(orders.id))]
            )
            session.add(orders(id=9000, customer=1, total=1, state="new"))
            session.flush()
            print(session.scalar(sa.select(sa.func.count()).select_from(orders)))
            session.rollback()
        engine.dispose()


if __name__ == "__main__":
    main()
